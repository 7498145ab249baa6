//! Figures of `errors`: the outcome of each fault for each store, as tables, since outcomes are words; and the cost of
//! checking.

use super::FAULTS;
use super::ID;
use super::findings::{fate, fault_title, outcome_of, store_title};
use crate::show::figures::{Figure, Table};
use crate::summary::{Group, Summary};

/// Draws the tables of the faults: one of all outcomes, and one of each store's messages.
pub(super) fn faults(summary: &Summary<'_>) -> Vec<Figure> {
    let groups: Vec<&Group<'_>> =
        summary.of_experiment(ID).filter(|group| FAULTS.contains(&group.spec.variant.as_str())).collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let met: Vec<&str> =
        FAULTS.into_iter().filter(|fault| groups.iter().any(|group| group.spec.variant == *fault)).collect();
    let mut stores: Vec<&str> = Vec::new();
    for group in &groups {
        if !stores.contains(&group.spec.method.as_str()) {
            stores.push(&group.spec.method);
        }
    }
    let mut table = Table { headers: vec!["store".into()], rows: Vec::new() };
    table.headers.extend(met.iter().map(|fault| fault_title(fault).to_owned()));
    for store in stores {
        let mut row = vec![store_title(store)];
        row.extend(met.iter().map(|fault| {
            let group = groups.iter().find(|group| group.spec.variant == *fault && group.spec.method == store);
            group.and_then(|group| outcome_of(group)).map_or("–".to_owned(), fate)
        }));
        table.rows.push(row);
    }
    let words = |name: &str, group: &Group<'_>| {
        outcome_of(group).and_then(|outcome| outcome.texts.get(name).cloned()).unwrap_or_default()
    };
    let mut said = Table { headers: ["fault", "store", "ended", "said"].map(str::to_owned).to_vec(), rows: Vec::new() };
    for group in groups {
        let row = [
            fault_title(&group.spec.variant).to_owned(),
            store_title(&group.spec.method),
            words("ended", group),
            words("said", group),
        ];
        said.rows.push(row.to_vec());
    }
    let figure = |title: &str, lead: &str, table: Table| Figure {
        title: title.into(),
        lead: lead.into(),
        legend: Vec::new(),
        svg: String::new(),
        table,
        ..Figure::default()
    };
    vec![
        figure(
            "What each store made of each fault",
            "Each trial is one process that met one real fault, at one page of 256. “No word” means that wrong bytes were handed out as data.",
            table,
        ),
        figure("In their own words", "What the store said first, and how its process ended where it did.", said),
    ]
}
