//! Runs a benchmark once, in a new folder, or by turns with another build of it, whose figure is compared.

use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use nofault::error::Result;

/// The arguments of a benchmark, without the one that cargo adds. The first is the folder in which it measures.
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    /// Returns the argument at this place as a number, or `default` if there is none. Ends the program if it is no number.
    pub(crate) fn number<T: FromStr>(&self, at: usize, default: T) -> T {
        let parse = |text: &String| text.parse().unwrap_or_else(|_| panic!("argument {}: {text} is no number", at + 1));
        self.0.get(at).map_or(default, parse)
    }

    /// Returns the argument at this place, or `default` if there is none.
    pub(crate) fn text<'a>(&'a self, at: usize, default: &'a str) -> &'a str {
        self.0.get(at).map_or(default, String::as_str)
    }
}

/// Runs the benchmark `name`, which takes `count` arguments. Without more of them, calls `measure` with a new path inside the first
/// argument, and removes the folder there afterwards. The argument after them is another program: the two run by turns, as often as
/// the argument after that one says (3 times), and the numbers that they print before `unit` are compared.
///
/// # Errors
/// The error of `measure`.
pub(crate) fn run(
    (name, count, unit): (&str, usize, &str),
    measure: impl FnOnce(&Path, &Arguments) -> Result<()>,
) -> Result<()> {
    let arguments = Arguments(std::env::args().skip(1).filter(|argument| argument != "--bench").collect());
    if let Some(baseline) = arguments.0.get(count) {
        compare(Path::new(baseline), &arguments.0[..count], arguments.number(count + 1, 3), unit);
        return Ok(());
    }
    let folder = Path::new(arguments.text(0, ".")).join(format!("nofault-{name}-{}", std::process::id()));
    let outcome = measure(&folder, &arguments);
    // Removes the folder of this run only.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

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
fn compare(baseline: &Path, arguments: &[String], rounds: u64, unit: &str) {
    let own = std::env::current_exe().expect("this program has a path");
    let mut ratios: Vec<f64> = Vec::new();
    for round in 0..rounds.max(1) {
        // Each is the first in every other round.
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
