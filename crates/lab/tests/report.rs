//! The report from records that no machine made: what must be in it, what must never be, and how it looks in a browser.

mod synthetic;

use nofault_lab::report;

#[test]
fn a_full_run_makes_a_page() {
    let page = report::html(&synthetic::full(1)).unwrap();
    if let Ok(path) = std::env::var("NOFAULT_KEEP_REPORT") {
        std::fs::write(path, &page).unwrap();
    }
    assert!(page.contains("What does paging with mmap cost"));
}
