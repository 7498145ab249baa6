//! Drawing of results, independent of experiments: charts and tables of the report, columns of the terminal.

pub(crate) mod charts;
pub(crate) mod choice;
pub(crate) mod columns;
pub(crate) mod figures;
pub(crate) mod literature;
pub(crate) mod over;
pub(crate) mod ratio_map;
pub(crate) mod svg;
