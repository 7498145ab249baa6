//! The literature's figures with the reader's beside them: the same contender at its best setting, on the file. Other machines,
//! other scales: the axis is logarithmic, and no ratio is made of the two.

use super::charts::{Mark, MarkKind, Row, Rows};
use super::figures::{Figure, Legend, Table, tone};
use crate::findings::best;
use crate::literature::{LiteratureRow, LiteratureTable};
use crate::record::{CacheState, ExperimentId};
use crate::summary::{Group, Metric, Summary, is_plain};

/// A table of the literature as a drawing.
pub(crate) fn literature(table: &LiteratureTable, summary: &Summary<'_>) -> Figure {
    let all: Vec<Vec<Option<&Group<'_>>>> = table.rows.iter().map(|row| here(table, row, summary)).collect();
    let metric = metric_of(table);
    let show = |group: &Option<&Group<'_>>| {
        let spread = group.and_then(|group| group.spread(metric));
        spread.map_or("–".to_owned(), |spread| table.unit.show(spread.median))
    };
    let any = all.iter().flatten().any(Option::is_some);
    let mut rows = Vec::new();
    let mut data = Table { headers: vec!["contender".into()], rows: Vec::new() };
    data.headers.extend(table.columns.iter().map(|&column| column.to_owned()));
    data.headers.extend(table.columns.iter().map(|column| format!("{column}, here")));
    data.headers.push("remark".into());
    for (row, own) in table.rows.iter().zip(&all) {
        let tone = tone(row.contender);
        let theirs = row.values.iter().zip([MarkKind::Literature, MarkKind::LiteratureWarm]);
        let mut marks: Vec<Mark> =
            theirs.map(|(value, kind)| Mark { values: vec![*value], median: *value, kind }).collect();
        for (group, kind) in own.iter().zip([MarkKind::Cold, MarkKind::Warm]) {
            if let Some((group, spread)) = group.and_then(|group| Some((group, group.spread(metric)?))) {
                marks.push(Mark { values: group.values(metric), median: spread.median, kind });
            }
        }
        let values: Vec<String> = row.values.iter().map(|value| table.unit.show(*value)).collect();
        let ours: Vec<String> = own.iter().map(show).collect();
        let value = values.join(" · ");
        let value = if any { format!("{value} | here {}", ours.join(" · ")) } else { value };
        rows.push(Row { label: row.label.into(), tone, marks, value });
        let mut cells = vec![row.label.to_owned()];
        cells.extend(values);
        cells.extend(ours);
        cells.push(row.note.to_owned());
        data.rows.push(cells);
    }
    if table.rows.is_empty() {
        // Words only: the remarks beside it.
        return Figure {
            title: table.title.into(),
            lead: String::new(),
            legend: Vec::new(),
            svg: String::new(),
            table: Table::default(),
        };
    }
    let chart = Rows { axis: table.columns.join(" and "), unit: table.unit, log: true, rows };
    let title = table.title.to_owned();
    let mark = |mark, label: &str| Legend { tone: "t6", dash: 0, mark, label: label.into() };
    let two = table.columns.len() > 1;
    let mut legend = vec![mark("diamond", if two { "literature, cold" } else { "literature" })];
    if two {
        legend.push(mark("hollow", "literature, warm"));
    }
    if any {
        let anywhere = matches!(table.experiment, ExperimentId::Eviction | ExperimentId::Translate);
        let one = if anywhere { "here" } else { "here, on the file" };
        legend.push(mark("dot", if two { "here, cold" } else { one }));
    }
    if any && two {
        legend.push(mark("ring", "here, warm"));
    }
    Figure { svg: chart.draw(&title), title, lead: String::new(), legend, table: data }
}

/// What the table's figures are.
fn metric_of(table: &LiteratureTable) -> Metric {
    match table.experiment {
        ExperimentId::Eviction => Metric::ShootdownsPerS,
        experiment => Metric::primary(experiment),
    }
}

/// The reader's groups for a row: one for each column.
fn here<'g, 'a>(table: &LiteratureTable, row: &LiteratureRow, summary: &'g Summary<'a>) -> Vec<Option<&'g Group<'a>>> {
    if table.experiment == ExperimentId::Eviction {
        // Where kswapd evicts, as on the paper's machine; else under a cgroup.
        let at = |by: &str| {
            let own = summary.of_experiment(table.experiment).filter(|group| {
                let spec = group.spec;
                spec.contender == row.contender && spec.variant == format!("{}-{by}", table.variant)
            });
            own.filter_map(|group| Some((group.spread(metric_of(table))?.median, group)))
                .reduce(|most, next| if next.0 > most.0 { next } else { most })
        };
        return vec![at("kswapd").or_else(|| at("cgroup")).map(|(_, group)| group)];
    }
    if table.experiment == ExperimentId::Translate {
        // The largest working set comes closest.
        let own = summary.of_experiment(table.experiment).filter(|group| {
            let spec = group.spec;
            spec.contender == row.contender && spec.variant == table.variant && spec.params.threads == 1
        });
        return vec![own.max_by_key(|group| group.spec.target.data_bytes)];
    }
    let states: &[CacheState] =
        if table.columns.len() > 1 { &[CacheState::Cold, CacheState::Warm] } else { &[CacheState::Cold] };
    let find = |cache: &CacheState| {
        let same = summary.of_experiment(table.experiment).filter(|group| {
            let spec = group.spec;
            spec.contender == row.contender
                && spec.variant == table.variant
                && spec.target.label == "file"
                && spec.cache == *cache
                && is_plain(&spec.params)
        });
        best(same, Metric::primary(table.experiment))
    };
    // Ten devices are not compared with one file.
    if table.devices > 1 { vec![None; states.len()] } else { states.iter().map(find).collect() }
}
