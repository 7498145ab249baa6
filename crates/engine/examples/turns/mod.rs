//! Runs two builds of an example by turns, and compares one figure that both print.

use std::path::Path;
use std::process::Command;

/// Runs a program with these arguments, prints its output, and returns the number before `unit` in it.
fn figure_of(program: &Path, arguments: &[String], unit: &str) -> f64 {
    let output = Command::new(program).args(arguments).output().expect("the program can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{}: {text}", program.display());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let before = text.split(unit).next().and_then(|before| before.rsplit(' ').next());
    before.and_then(|figure| figure.parse().ok()).unwrap_or_else(|| panic!("the program prints no `NUMBER{unit}`"))
}

/// Runs this program and another by turns with these arguments, so many times, and prints the ratios of their figures before
/// `unit`: the median, with the lowest and the highest.
pub(crate) fn compare(baseline: &Path, arguments: &[String], rounds: u64, unit: &str) {
    let own = std::env::current_exe().expect("this program has a path");
    let mut ratios: Vec<f64> = Vec::new();
    for round in 0..rounds.max(1) {
        // Neither is always the first.
        let (figure, other) = if round % 2 == 0 {
            let other = figure_of(baseline, arguments, unit);
            (figure_of(&own, arguments, unit), other)
        } else {
            (figure_of(&own, arguments, unit), figure_of(baseline, arguments, unit))
        };
        ratios.push(figure / other);
    }
    ratios.sort_by(f64::total_cmp);
    let (lowest, highest) = (ratios[0], ratios[ratios.len() - 1]);
    println!(
        "ratio to `NUMBER{unit}` of {}: {:.2} ({lowest:.2} to {highest:.2}, {} rounds)",
        baseline.display(),
        ratios[ratios.len() / 2],
        ratios.len(),
    );
}
