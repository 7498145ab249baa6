//! What the report shows of `folios` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::{ALL, ID, MMAP_IN_ORDER, folio_bytes, sizes};
use crate::experiment::Texts;
use crate::format::{Unit, bytes};
use crate::show::charts::{Lines, Panel, Series};
use crate::show::columns::{Column, measured};
use crate::show::figures::{Figure, Table, dash, legend_of, rates};
use crate::show::literature::{LiteratureTable, Source, row};
use crate::summary::{Group, Metric, Summary, target_title};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "What does a page fault cost by the size of the folio that holds the page?",
    main_figure: "time to fault in a cached page, largest folios ÷ smallest",
    procedure: "A file without a name is written in calls of 4 KiB to 2 MiB, so that a file system with large folios caches each call as one folio, and \
     synced. The real folio of every page is read from /proc/kpageflags: a size is not measured unless nine tenths of the pages \
     have it, and the record then says which sizes they have. Then one thread maps the file, loads and checks the first word of each page, and maps it \
     anew; only the loads are timed. Faults are counted by the kernel for the process. `pread, cached` is the control: a call for each page.",
    change: &[
        "Another file system: folios are as large as it allows, and with 4 KiB only there is nothing to gain.",
        "How the data came into the cache: random reads with that advice bring folios of 4 KiB, folios of sequential reads grow with the read-ahead.",
        "Sparse touches: the further pages that a fault maps are of use only where they are touched too.",
        "Memory that is full: a large folio is evicted as a whole, and `eviction` measures the cost of that.",
    ],
};

/// Number of pages in the file of the published measurement: 1 GiB.
const PAGES: f64 = 262_144.0;

static TMPFS: Source = Source {
    cite: "Baolin Wang, linux-mm, July 2025",
    title: "mm: fault in complete folios instead of individual pages for tmpfs (patch, version 2)",
    machine: "Machine not stated",
    how: "time of writing through a map to each page of 1 GiB in tmpfs with folios of 64 KiB, before and after the patch; here per page",
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &TMPFS,
    variant: "",
    devices: 1,
    title: "Time to touch a page of cached data, in order",
    metric: Metric::TimePerOp,
    unit: Unit::Seconds,
    columns: &["time of a page"],
    rows: &[
        row("a fault for each page", &MMAP_IN_ORDER, &[0.158 / PAGES], "beside it: folios of 4 KiB"),
        row("a fault for each folio of 64 KiB", &MMAP_IN_ORDER, &[0.021 / PAGES], ""),
    ],
    remarks: &[
        "tmpfs maps no pages around the one that faults, where files on disk have 16 of them mapped; and these faults were writes.",
    ],
}];

// Figures of `folios`: the time of a page over the size of the folio, with a line for each method, and the number of
// faults.

/// Draws the figures: curves over the folio sizes where several were measured, otherwise bars.
pub(super) fn figures(groups: &[&Group<'_>], place: &str) -> Vec<Figure> {
    let sizes = sizes(groups);
    if sizes.len() < 2 {
        return rates(groups, place, Metric::TimePerOp, "time of a page").into_iter().collect();
    }
    over_sizes(groups, place, &sizes).into_iter().collect()
}

fn over_sizes(groups: &[&Group<'_>], place: &str, sizes: &[u64]) -> Option<Figure> {
    let unit = Unit::Seconds;
    let mut series: Vec<Series> = Vec::new();
    let mut table = Table { headers: vec!["method".into()], rows: Vec::new() };
    table.headers.extend(sizes.iter().map(|size| bytes(*size)));
    for method in ALL {
        let at = |size: &u64, metric: Metric| {
            let same = |group: &&&Group<'_>| group.spec.method == method.id && folio_bytes(group) == Some(*size);
            groups.iter().find(same)?.spread(metric)
        };
        let time = |size: &u64| at(size, Metric::TimePerOp);
        let points: Vec<(f64, f64)> =
            sizes.iter().filter_map(|size| Some((*size as f64, time(size)?.median))).collect();
        let label = method.title.to_owned();
        let mut row = vec![label.clone()];
        row.extend(sizes.iter().map(|size| time(size).map_or("–".into(), |spread| spread.show(unit))));
        table.rows.push(row);
        series.push(Series { label, tone: method.tone, dash: dash(&series, method.tone), points, full_at: None });
    }
    series.retain(|series| series.points.len() > 1);
    if series.is_empty() {
        return None;
    }
    let (from, to) = (*sizes.first()? as f64, *sizes.last()? as f64);
    let title = format!("Time of a page by the size of its folio: {place}");
    let ticks = sizes.iter().map(|size| (*size as f64, bytes(*size))).collect();
    let legend = legend_of(&series);
    let panels = vec![Panel { axis: "time of a page on one thread".into(), unit, log: true, series }];
    let chart = Lines { axis: "size of the folios (logarithmic)".into(), from, to, log: true, ticks, panels };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: "Medians, all in the page cache. Sizes are the kernel's; a size that the file system did not use is left out. In brackets in \
               the table: the repeats."
            .into(),
        legend,
        table, ..Figure::default()
    })
}

/// Builds a row for each method and a column for each folio size: the time of a page. The text below gives the number
/// of faults for each page of a map.
pub(super) fn columns(summary: &Summary<'_>, target: &str) -> Vec<Column> {
    let groups = summary.at(ID, "", target);
    let at = |method: &str, size: u64| {
        groups.iter().copied().find(|group| group.spec.method == method && folio_bytes(group) == Some(size))
    };
    let rows = ALL.into_iter().flat_map(|method| {
        let name = method.title.to_owned();
        [name.clone(), format!("{name}: faults a page")]
    });
    let head = format!("{ID}, {}, time of a page", target_title(target));
    let mut columns = vec![Column::new(&head, rows.collect())];
    for size in sizes(&groups) {
        let cells = ALL.into_iter().flat_map(|method| {
            let shown =
                |metric: Metric| at(method.id, size).map_or(String::new(), |group: &Group<'_>| measured(group, metric));
            [shown(Metric::TimePerOp), shown(Metric::PerOp("minor_faults"))]
        });
        columns.push(Column::new(&bytes(size), cells.collect()));
    }
    columns
}
