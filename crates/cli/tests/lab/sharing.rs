//! `nofault lab share` and `nofault lab gallery`: results for others, and from others.

use std::fs;

use crate::common::{Lab, outcome};

#[test]
fn a_shared_result_has_the_figures_and_no_path_and_is_shown_before_it_is_written() {
    let lab = Lab::measured();
    let result = lab.only_result();
    let printed = outcome(lab.command(&["share"]).arg(&result));
    assert_eq!(printed.code, 0, "{}", printed.stderr);
    assert!(printed.stderr.contains("replaced: ") && printed.stderr.contains("paths"), "{}", printed.stderr);
    let shared: serde_json::Value = serde_json::from_str(&printed.stdout).unwrap();
    let outer = lab.outer.path().to_str().unwrap();
    assert!(shared["records"].as_array().unwrap().len() > 18 && !printed.stdout.contains(outer), "{}", printed.stdout);

    let out = lab.outer.path().join("mine.json");
    let write =
        |more: &[&str]| outcome(lab.command(&["share", "--out", out.to_str().unwrap()]).arg(&result).args(more));
    let unasked = write(&[]);
    assert_eq!((unasked.code, out.exists()), (2, false), "without a terminal there is no answer: {}", unasked.stderr);
    assert!(unasked.stdout.contains("\"cpu\""), "shown all the same: {}", unasked.stdout);
    assert_eq!(write(&["--yes"]).code, 0);
    assert_eq!(fs::read_to_string(&out).unwrap().trim_end(), printed.stdout.trim_end());
    assert_eq!(write(&["--yes"]).code, 0, "an earlier one is replaced");
    fs::write(&out, "precious").unwrap();
    assert_eq!(write(&["--yes"]).code, 2);
    assert_eq!(fs::read_to_string(&out).unwrap(), "precious");
}

#[test]
fn a_gallery_takes_folders_and_shared_files_and_names_places_without_a_result() {
    let lab = Lab::measured();
    let result = lab.only_result();
    let mine = lab.outer.path().join("mine.json");
    let shared = outcome(lab.command(&["share", "--yes", "--out", mine.to_str().unwrap()]).arg(&result));
    assert_eq!(shared.code, 0, "{}", shared.stderr);
    let page = lab.outer.path().join("gallery.html");
    let made = outcome(lab.command(&["gallery", "--out", page.to_str().unwrap()]).args([&lab.dir, &mine]));
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stderr.contains("gallery of 2 results"), "{}", made.stderr);
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("explicit I/O: 2 results") && html.contains("<b>A · ") && html.contains("<b>B · "), "{html}");
    // Files that other programs have converted, and one that is not to be read whole.
    let text = fs::read_to_string(&mine).unwrap();
    let other = lab.outer.path().join("other.json");
    let gallery = || outcome(lab.command(&["gallery", "--out", page.to_str().unwrap()]).arg(&other));
    fs::write(&other, format!("\u{feff}{}", text.replace('\n', "\r\n"))).unwrap();
    assert_eq!(gallery().code, 0, "{}", gallery().stderr);
    fs::write(&other, text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>()).unwrap();
    assert!(gallery().code == 6 && gallery().stderr.contains("UTF-16"), "{}", gallery().stderr);
    fs::File::create(&other).unwrap().set_len(1 << 30).unwrap();
    assert!(gallery().code == 6 && gallery().stderr.contains("line 1 is longer than 32 MiB"), "{}", gallery().stderr);
    let empty = lab.outer.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let none = outcome(lab.command(&["gallery", "--out", page.to_str().unwrap()]).arg(&empty));
    assert!(none.code == 2 && none.stderr.contains("there is no result in"), "{}", none.stderr);
    fs::write(&page, "precious").unwrap();
    let refused = outcome(lab.command(&["gallery", "--out", page.to_str().unwrap()]).arg(&mine));
    assert_eq!((refused.code, fs::read_to_string(&page).unwrap().as_str()), (2, "precious"), "{}", refused.stderr);
}

#[test]
fn every_figure_is_written_as_a_picture_of_its_own() {
    let lab = Lab::measured();
    let folder = lab.outer.path().join("figures");
    let drawn = outcome(lab.command(&["report", "--svgs", folder.to_str().unwrap()]).arg(lab.only_result()));
    assert_eq!(drawn.code, 0, "{}", drawn.stderr);
    let pictures: Vec<_> = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(!pictures.is_empty());
    for path in pictures {
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("<svg xmlns=") && path.extension().is_some_and(|end| end == "svg"),
            "{}",
            path.display()
        );
    }
}
