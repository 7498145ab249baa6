//! The literature's figures with the reader's next to them, as the experiment chooses them. Other machines,
//! other scales: the axis is logarithmic, and no ratio is made of the two.

use crate::experiment::Experiment;
use crate::experiments;
use crate::show::charts::{Mark, MarkKind, Row, Rows};
use crate::show::figures::{Figure, Legend, Table};
use crate::show::literature::{Counterparts, LiteratureTable};
use crate::summary::{Group, Summary};

/// Draws a table of published figures next to the reader's own.
pub(crate) fn figure(experiment: &dyn Experiment, table: &LiteratureTable, summary: &Summary<'_>) -> Figure {
    let found: Vec<Counterparts<'_, '_>> =
        table.rows.iter().map(|row| experiment.counterparts(table, row, summary)).collect();
    let on_file = found.iter().all(|own| own.on_file);
    let all: Vec<Vec<Option<&Group<'_>>>> = found.into_iter().map(|own| own.groups).collect();
    let metric = table.metric;
    let show = |group: &Option<&Group<'_>>| {
        let spread = group.and_then(|group| group.spread(metric));
        spread.map_or("–".to_owned(), |spread| table.unit.show(spread.median))
    };
    let any = all.iter().flatten().any(Option::is_some);
    let mut rows = Vec::new();
    let mut data = Table { headers: vec!["method".into()], rows: Vec::new() };
    data.headers.extend(table.columns.iter().map(|&column| column.to_owned()));
    data.headers.extend(table.columns.iter().map(|column| format!("{column}, here")));
    data.headers.push("remark".into());
    for (row, own) in table.rows.iter().zip(&all) {
        let tone = experiments::method(experiment.id(), row.method).map_or("t6", |method| method.tone);
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
        // No figures: only the remarks are shown.
        return Figure {
            title: table.title.into(),
            lead: String::new(),
            legend: Vec::new(),
            svg: String::new(),
            table: Table::default(),
            ..Figure::default()
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
        let one = if on_file { "here, on the file" } else { "here" };
        legend.push(mark("dot", if two { "here, cold" } else { one }));
    }
    if any && two {
        legend.push(mark("ring", "here, warm"));
    }
    Figure { svg: chart.draw(&title), title, lead: String::new(), legend, table: data, ..Figure::default() }
}
