//! What the report shows of `crossover` whatever the figures: question, method and limits, published figures; and its charts and tables.

use super::rules::{Cell, Side, cells, headline, percent};
use super::{HOT_SET, ID, UNIFORM, ZIPF};
use crate::experiment::Texts;
use crate::format::{Unit, digits};
use crate::judge::Kind;
use crate::methods::{self, Family};
use crate::show::columns::{Column, Sheet, measured, title};
use crate::show::figures::{Figure, Legend, Table, costs, results};
use crate::show::literature::{LiteratureTable, PAPER, row};
use crate::show::ratio_map::{Field, RatioMap, RatioPanel};
use crate::summary::{Group, Metric, Spread, Summary, target_title};

/// What the report says of the experiment whatever the figures.
pub(super) const TEXTS: Texts = Texts {
    question: "From which miss rate on is a map slower than explicit I/O?",
    main_figure: "miss rate above which mmap loses to the best other way, file",
    procedure: "Random 4 KiB reads of data from half of memory to eight times memory, uniform and zipfian (constant 0.99, popular pages \
     scattered over the data), one to many requests in flight, every method under the same memory limit. Before the clock starts, each method \
     reads by its own means: as many pages as fit, once, then in the trial's own order until a perfect cache would have replaced all its pages, with 64 requests in flight; so the pages in \
     memory are those that its own replacement keeps. The map is the faster of two: told RANDOM, and for zipfian reads NORMAL on a device whose \
     read-ahead is off. It stands against the fastest of buffered reads told RANDOM, direct reads (pread, and from two in flight io_uring), and \
     the engine's pool (threads where the data fits in the pool, tasks of one executor where it does not). The engine takes its memory as a \
     setting well below the limit, which the page cache uses up to its last byte. The miss rate is the share of accesses through the map \
     that are major faults: they wait for the device. A word of each page is checked against the expected content, while timed. \
     The variant hot-set reads a RAM-backed device of the lab's own: half of memory takes 95 % of the reads.",
    change: &[
        "A faster device: a miss then costs CPU time more than waiting, and the border moves to lower miss rates.",
        "More CPUs: a map's evictions interrupt every CPU that uses it.",
        "Larger reads: a call is then paid once for many pages, a fault for each or for each of a few.",
        "Batches: the methods here answer each request by itself; `batch` asks for many pages at once.",
        "A kernel before 6.3: reclaim then keeps pages of a RANDOM map that are in use.",
    ],
};

/// Tables of published figures, which the report shows next to this machine's figures.
pub(super) static TABLES: &[LiteratureTable] = &[LiteratureTable {
    source: &PAPER,
    variant: UNIFORM,
    devices: 1,
    title: "Random 4 KiB reads, 100 threads, data twenty times memory",
    metric: Metric::OpsPerS,
    unit: Unit::PerSecond,
    columns: &["reads per second"],
    rows: &[
        row("fio O_DIRECT", &methods::PREAD_DIRECT, &[900e3], ""),
        row("mmap RANDOM", &methods::MMAP_RANDOM, &[401e3], ""),
    ],
    remarks: &[
        "The paper has one point of the grid: uniform reads that nearly all miss. There mmap reaches 0.45 of direct I/O; while memory \
         filled, it kept up.",
    ],
}];

// The picture of `crossover`: the ratio of the map's rate to the best other method's over the grid, with the line at one;
// the same as a table; and the table of the terminal.

/// The orders of reads with their titles, in the order of the panels.
const ORDERS: [(&str, &str); 2] = [(UNIFORM, "uniform"), (ZIPF, "zipfian 0.99")];

/// The sizes of the data and the numbers of requests in flight of the grid, each in ascending order.
struct Grid {
    data: Vec<f64>,
    counts: Vec<u32>,
}

impl Grid {
    fn of(cells: &[Cell<'_, '_>]) -> Self {
        let mut data: Vec<f64> = cells.iter().map(|cell| cell.data).collect();
        data.sort_by(f64::total_cmp);
        data.dedup();
        let mut counts: Vec<u32> = cells.iter().map(|cell| cell.in_flight).collect();
        counts.sort_unstable();
        counts.dedup();
        Self { data, counts }
    }
}

/// The point of the grid with these values.
fn point<'c, 'g, 'a>(cells: &'c [Cell<'g, 'a>], variant: &str, count: u32, size: f64) -> Option<&'c Cell<'g, 'a>> {
    let same =
        |cell: &&Cell<'_, '_>| cell.variant == variant && cell.in_flight == count && (cell.data - size).abs() < 1e-9;
    cells.iter().find(same)
}

/// Draws the map of the ratio on one target; `None` where the grid was not measured.
pub(super) fn map(summary: &Summary<'_>, target: &str) -> Option<Figure> {
    let cells = cells(summary, target);
    let Grid { data, counts } = Grid::of(&cells);
    let panel = |(variant, title): (&str, &str)| {
        let row = |count: &u32| data.iter().map(|size| point(&cells, variant, *count, *size)).collect::<Vec<_>>();
        let rows = counts.iter().rev().flat_map(row);
        let fields: Vec<_> = rows.map(|cell| cell.and_then(field)).collect();
        fields.iter().any(Option::is_some).then(|| RatioPanel { title: title.into(), fields })
    };
    let panels: Vec<RatioPanel> = ORDERS.into_iter().filter_map(panel).collect();
    if panels.is_empty() {
        return None;
    }
    let title = format!("mmap against the best explicit method: {}", target_title(target));
    let chart = RatioMap {
        across: "size of the data, as a multiple of the memory".into(),
        down: "requests in flight".into(),
        columns: data.iter().map(|size| format!("{size}×")).collect(),
        rows: counts.iter().rev().map(ToString::to_string).collect(),
        panels,
    };
    let entry = |tone, label: &str| Legend { tone, dash: 0, mark: "dot", label: label.into() };
    Some(Figure {
        svg: chart.draw(&title),
        title,
        lead: format!(
            "Rate of random reads through the best valid map over the fastest other method's, which is named; a thick line where the \
             ratio crosses 1; ? where the repeats do not decide. {}",
            headline(summary, target).unwrap_or_default()
        ),
        legend: vec![entry("t0", "mmap is faster"), entry("t3", "the other is faster")],
        table: table(&cells),
        ..Figure::default()
    })
}

fn field(cell: &Cell<'_, '_>) -> Option<Field> {
    let comparison = cell.against(Side::Best).ok()?;
    let other = cell.best_of(Side::Best)?;
    Some(Field {
        ratio: comparison.ratio.median,
        sure: comparison.kind == Kind::Difference,
        note: word(other).into(),
        title: format!("{}: {}", pair(cell, other), comparison.show()),
    })
}

/// One word for a method of the other side.
fn word(group: &Group<'_>) -> &'static str {
    match group.family() {
        Family::Buffered => "buffered",
        Family::Direct | Family::Ring => "direct",
        Family::Pool => "pool",
        Family::Mapped | Family::Baseline | Family::Other => "",
    }
}

fn pair(cell: &Cell<'_, '_>, other: &Group<'_>) -> String {
    let rate = |group: &Group<'_>| {
        let shown = group.spread(Metric::OpsPerS).map_or("–".into(), |spread| Unit::PerSecond.show(spread.median));
        format!("{} {shown}", group.title())
    };
    format!("{}, {}", rate(cell.map), rate(other))
}

/// The texts of one row about a cell: data, in flight, miss rate, the map's rate, and the ratio against each side.
fn texts(cell: &Cell<'_, '_>) -> Vec<String> {
    let miss = cell.miss_rate().map_or("–".into(), percent);
    let ratio = |side: Side| cell.against(side).map_or(String::new(), |comparison| comparison.show());
    let mut texts =
        vec![format!("{}×", cell.data), cell.in_flight.to_string(), miss, measured(cell.map, Metric::OpsPerS)];
    texts.extend(Side::ALL.map(ratio));
    texts.push(cell.best_of(Side::Best).map_or(String::new(), |other| other.title()));
    texts
}

const HEADERS: [&str; 9] =
    ["data : memory", "in flight", "miss rate", "map", "to best", "to buffered", "to direct", "to pool", "best other"];

fn table(cells: &[Cell<'_, '_>]) -> Table {
    let mut table = Table::new(&["reads"]);
    table.headers.extend(HEADERS.map(str::to_owned));
    for cell in cells {
        let order =
            ORDERS.iter().find(|(variant, _)| *variant == cell.variant).map_or(cell.variant, |(_, title)| title);
        let mut row = vec![order.to_owned()];
        row.extend(texts(cell));
        table.rows.push(row);
    }
    table
}

/// Makes the table of the terminal for one target: the ratio at each point with the fastest other method, and the median miss
/// rate; below it the sentence on the border. On the target of the hot set, the device's reads.
pub(super) fn sheet(summary: &Summary<'_>, target: &str) -> Sheet {
    let cells = cells(summary, target);
    if cells.is_empty() {
        let groups = summary.at(ID, HOT_SET, target);
        let each = |show: &dyn Fn(&Group<'_>) -> String| groups.iter().map(|group| show(group)).collect::<Vec<_>>();
        return Sheet::new(vec![
            Column::new(&title(ID, target), each(&|group| format!("hot set: {}", group.label()))),
            Column::new("reads/s", each(&|group| measured(group, Metric::OpsPerS))),
            Column::new(
                "device reads each",
                each(&|group| {
                    group.spread(Metric::Amplification).map_or(String::new(), |spread| digits(spread.median))
                }),
            ),
        ]);
    }
    let Grid { data, counts } = Grid::of(&cells);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (variant, order) in ORDERS {
        let at = |count: u32, size: f64| point(&cells, variant, count, size);
        for count in &counts {
            let ratios =
                data.iter().map(|size| at(*count, *size).and_then(field).map_or(String::new(), |field| field.words()));
            rows.push([format!("{order}, {count} in flight")].into_iter().chain(ratios).collect());
        }
        let misses = data.iter().map(|size| {
            let rates = counts.iter().filter_map(|count| at(*count, *size)?.miss_rate());
            Spread::of(rates).map_or(String::new(), |spread| percent(spread.median))
        });
        rows.push([format!("{order}, miss rate")].into_iter().chain(misses).collect());
    }
    rows.retain(|row| row[1..].iter().any(|text| !text.is_empty()));
    let heads = [title(ID, target)].into_iter().chain(data.iter().map(|size| format!("data {size}×")));
    let column = |(at, head): (usize, String)| Column::new(&head, rows.iter().map(|row| row[at].clone()).collect());
    let columns = heads.enumerate().map(column).collect();
    Sheet::new(columns).with_sentence(headline(summary, target).unwrap_or_default())
}

/// The figures of one order of reads: of the grid a table with every method, as its rates span four orders of magnitude; of the
/// hot set the device's reads.
pub(super) fn every_method(groups: &[&Group<'_>], variant: &str, place: &str) -> Vec<Figure> {
    if variant == HOT_SET {
        let axis = "pages read from the device for one access";
        return costs(groups, place, Metric::Amplification, axis)
            .map(|figure| Figure { lead: "Half of memory takes 95 % of the accesses.".into(), ..figure })
            .into_iter()
            .collect();
    }
    vec![Figure { title: format!("Every method: {place}"), table: results(groups), ..Figure::default() }]
}
