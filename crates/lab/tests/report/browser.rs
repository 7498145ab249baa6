//! The report in a real browser: no text over text, nothing cut off, at phone and desk width, in light and dark.
//!
//! Chromium runs headless, once: starting it costs more than checking. Each page is a frame with its own width and colour
//! scheme (a page in a frame takes the frame's), and a script in it writes its findings into an attribute. A headless
//! window is never narrower than 500 px, a frame may be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nofault_lab::report;
use nofault_sim::depth::sample;

use crate::pages::odd_files;

/// A script running in the page, with everything unfolded. The box that `getBoundingClientRect` gives for SVG text includes space for accents
/// and descenders, so it is cut by two pixels.
const CHECK: &str = r#"
<script>
window.addEventListener("load", function () {
  document.querySelectorAll("details").forEach(function (d) { d.open = true; });
  var wrong = [], dark = matchMedia("(prefers-color-scheme: dark)").matches;
  var shown = function (e) { var r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  var say = function (what, e) { wrong.push(what + ": " + (e.textContent || e.tagName).trim().slice(0, 60)); };
  var width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) wrong.push("the page is " + document.documentElement.scrollWidth + " wide in " + width);
  var texts = 0, charts = 0;
  document.querySelectorAll("svg.chart").forEach(function (svg) {
    if (!shown(svg)) return;
    charts++;
    var frame = svg.getBoundingClientRect();
    var boxes = Array.from(svg.querySelectorAll("text")).map(function (t) { return [t, t.getBoundingClientRect()]; });
    boxes.forEach(function (a, i) {
      texts++;
      if (a[1].left < frame.left - 1 || a[1].right > frame.right + 1 || a[1].top < frame.top - 3 || a[1].bottom > frame.bottom + 3) say("outside its figure", a[0]);
      boxes.slice(i + 1).forEach(function (b) {
        if (a[1].left < b[1].right - 1 && b[1].left < a[1].right - 1 && a[1].top + 2 < b[1].bottom - 2 && b[1].top + 2 < a[1].bottom - 2) say("over '" + b[0].textContent + "'", a[0]);
      });
    });
    svg.querySelectorAll("circle,path,rect,line").forEach(function (e) {
      var r = e.getBoundingClientRect();
      if (r.left < frame.left - 2 || r.right > frame.right + 2 || r.bottom > frame.bottom + 2) say("mark outside its figure", e);
    });
    if (parseFloat(getComputedStyle(svg.querySelector("text") || svg).fontSize) * frame.width / svg.viewBox.baseVal.width < 10) wrong.push("text under 10 px");
  });
  document.querySelectorAll("main *").forEach(function (e) {
    if (e.closest("svg,.scroll,pre") || !shown(e)) return;
    var r = e.getBoundingClientRect();
    if (r.right > width + 1 || r.left < -1) say("over the page's edge", e);
  });
  document.querySelectorAll("figure").forEach(function (f) {
    var parts = [f.querySelector("figcaption"), f.querySelector(".legend"), f.querySelector(".draw")].filter(Boolean);
    for (var i = 1; i < parts.length; i++)
      if (parts[i - 1].getBoundingClientRect().bottom > parts[i].getBoundingClientRect().top + 1) say("over the next part", parts[i - 1]);
  });
  var result = "CHECKED " + (dark ? "dark" : "light") + " " + width + " charts=" + charts + " texts=" + texts + " wrong=[" + wrong.slice(0, 8).join("; ") + "]";
  window.parent.document.body.setAttribute("data-" + window.name, result);
});
</script>
"#;

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]);
    let names = ["chromium", "chromium-browser", "google-chrome"];
    folders.flat_map(|folder| names.map(|name| folder.join(name))).find(|file| file.is_file())
}

/// Widths of the frames in pixels: a phone and a desktop.
const WIDTHS: [u32; 2] = [390, 1280];

/// A page that the browser loads in a frame with its own width and colour scheme.
struct Frame {
    name: &'static str,
    page: String,
    width: u32,
    dark: bool,
}

/// Runs the browser without a window over one page; what it prints is in the file `dom`.
fn run(browser: &Path, folder: &Path, arguments: &[&str], page: &Path) -> Result<(), String> {
    let profile = tempfile::tempdir_in(folder).unwrap();
    let output = fs::File::create(folder.join("dom")).unwrap();
    let mut child = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--allow-file-access-from-files",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(arguments)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let started = Instant::now();
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if started.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
            let _ = child.wait();
            return Err("no answer within two minutes".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Runs the browser over all frames; returns the findings of each frame's script, or why the browser gave none.
fn check(browser: &Path, folder: &Path, frames: &[Frame]) -> Result<Vec<String>, String> {
    let mut outer = String::from("<!DOCTYPE html><html><body>");
    for (number, frame) in frames.iter().enumerate() {
        let (id, width) = (format!("frame{number}"), frame.width);
        let scheme = if frame.dark { "dark" } else { "light" };
        let page = frame.page.replacen("</body>", &format!("{CHECK}</body>"), 1);
        fs::write(folder.join(format!("{id}.html")), page).unwrap();
        outer += &format!(
            "<iframe name=\"{id}\" src=\"{id}.html\" style=\"border:0;width:{width}px;height:900px;color-scheme:{scheme}\"></iframe>"
        );
    }
    let path = folder.join("frames.html");
    fs::write(&path, outer + "</body></html>").unwrap();
    run(browser, folder, &["--dump-dom", "--window-size=1800,1000"], &path)?;
    let dom = fs::read_to_string(folder.join("dom")).map_err(|error| error.to_string())?;
    if !dom.contains("data-frame") {
        return Err("no page checked itself".into());
    }
    let words = frames.iter().enumerate().map(|(number, frame)| {
        let name = format!("data-frame{number}=\"");
        let at = dom.find(&name).unwrap_or_else(|| panic!("{} at {} px did not check itself", frame.name, frame.width));
        let text = &dom[at + name.len()..];
        text[..text.find('"').unwrap_or(text.len())].to_owned()
    });
    Ok(words.collect())
}

#[test]
fn in_a_browser_nothing_overlaps_and_nothing_is_cut_off() {
    let Some(browser) = chromium() else {
        println!("not tested: no chromium on PATH (install the package `chromium`)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut frames = Vec::new();
    let (full, others): (Vec<_>, Vec<_>) = odd_files().into_iter().partition(|(name, _)| *name == "full");
    for (name, file) in full.into_iter().chain(sample(others, 4)) {
        let page = report::html(&file).unwrap();
        // Colours cannot move text: only the full page is checked in both.
        let schemes: &[bool] = if name == "full" { &[false, true] } else { &[true] };
        for (width, dark) in WIDTHS.into_iter().flat_map(|width| schemes.iter().map(move |dark| (width, *dark))) {
            frames.push(Frame { name, page: page.clone(), width, dark });
        }
    }
    let results = match check(&browser, folder.path(), &frames) {
        Ok(results) => results,
        Err(why) => {
            println!("not tested: {} does not run here: {why}", browser.display());
            return;
        }
    };
    let mut wrong = Vec::new();
    for (frame, result) in frames.iter().zip(results) {
        let (name, scheme) = (frame.name, if frame.dark { "dark" } else { "light" });
        assert!(result.starts_with(&format!("CHECKED {scheme} ")), "{name}: {result}");
        let drawn = !result.contains("charts=0 ") || ["empty", "no operations"].contains(&name);
        if !result.ends_with("wrong=[]") || !drawn {
            wrong.push(format!("{name}: {result}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_report_whose_appendices_are_folded_prints_on_two_pages() {
    let Some(browser) = chromium() else {
        println!("not tested: no chromium on PATH (install the package `chromium`)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (page, printed) = (folder.path().join("report.html"), folder.path().join("report.pdf"));
    let html = report::html(&crate::synthetic::full(3)).unwrap();
    for size in sample(["A4", "letter"], 2) {
        fs::write(&page, html.replacen("@page{", &format!("@page{{size:{size};"), 1)).unwrap();
        let arguments = ["--no-pdf-header-footer", &format!("--print-to-pdf={}", printed.display())];
        if let Err(why) = run(&browser, folder.path(), &arguments, &page) {
            println!("not tested: {} does not run here: {why}", browser.display());
            return;
        }
        let bytes = fs::read(&printed).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let pages = text.matches("/Type /Page\n").count();
        assert!((1..=2).contains(&pages), "{size}: {pages} pages");
    }
}
