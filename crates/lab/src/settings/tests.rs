//! A configuration is changed by name, refused by name, and printed as it was declared.

use super::*;
use crate::config::YesNo;

#[test]
fn every_preset_is_valid_and_survives_toml() {
    for preset in [Preset::Quick, Preset::Standard, Preset::Paper] {
        let config = Config::preset(preset);
        config.validate().unwrap();
        assert_eq!(Config::from_toml(&config.to_toml().unwrap()).unwrap(), config);
    }
}

#[test]
fn a_configuration_file_changes_only_the_values_that_it_names() {
    let config = Config::from_toml("preset = 'standard'\n[random]\nthreads = [7]\n").unwrap();
    assert_eq!(config, Config::preset(Preset::Standard).assign("random.threads=[7]").unwrap());
    assert_ne!(config, Config::preset(Preset::Standard));
    let config = Config::from_toml("[workload]\nread_only = 'yes'\nthreads = 4\n").unwrap();
    let said = WorkloadConfig { read_only: YesNo::Yes, threads: 4, ..WorkloadConfig::default() };
    assert_eq!(config, Config { workload: said, ..Config::default() });
}

#[test]
fn nonsense_is_refused_by_name() {
    let refused = |text: &str| Config::from_toml(text).and_then(|config| config.validate()).unwrap_err().to_string();
    assert!(refused("[random]\nthread = [7]").contains("thread"));
    assert!(refused("[workload]\nread_only = 'perhaps'").contains("perhaps"));
    assert!(refused("experiments = ['nothing']").contains("nothing"));
    assert!(refused("[random]\ncell_s = -1.0").contains("random.cell_s"));
    assert!(refused("memory_bytes = 4294967296").contains("data_bytes"));
    assert!(refused("[scan]\nblock_bytes = 5000").contains("scan.block_bytes"));
    assert!(refused("this is not toml").contains("configuration"));
}

#[test]
fn every_value_of_a_printed_configuration_can_be_set_by_its_name() {
    let from = Config::preset(Preset::Quick);
    let to = Config { preset: Preset::Quick, ..Config::preset(Preset::Paper) };
    let mut now = from;
    let mut table = String::new();
    let mut count = 0;
    for line in to.to_toml().unwrap().lines() {
        match line.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(name) => table = format!("{name}."),
            None if line.contains(" = ") && !line.starts_with("preset") => {
                now = now.assign(&format!("{table}{line}")).unwrap();
                count += 1;
            }
            None => {}
        }
    }
    assert_eq!(now, to);
    assert!(count > 80, "{count}");
}

#[test]
fn words_need_no_quotes_and_nonsense_is_named() {
    let config = Config::default();
    assert_eq!(config.assign("fio=off").unwrap().fio, Choice::Off);
    assert_eq!(config.assign(" fio = 'off' ").unwrap().fio, Choice::Off);
    let threads = config.assign("random.threads=[3, 5]").unwrap();
    assert_eq!(threads, Config::from_toml("[random]\nthreads = [3, 5]").unwrap());
    for (assignment, words) in [
        ("random.block_bytes", "a name and a value"),
        ("random.block_byte=4096", "random.block_byte"),
        ("random.threads=many", "random.threads"),
        ("=3", "a name and a value"),
        ("preset=paper", "--preset"),
        ("a b=3", "--set a b=3"),
    ] {
        let error = config.assign(assignment).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Usage);
        assert!(error.to_string().contains(words), "{assignment}: {error}");
    }
}
