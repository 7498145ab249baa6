//! The examples at the end of each command's `--help`, in one place, so that a test can parse them all.

use clap::Command;

/// The examples of each command, by its words.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "completions",
        &[
            "nofault completions bash > ~/.local/share/bash-completion/completions/nofault",
            "nofault completions zsh > ~/.zfunc/_nofault",
            "nofault completions fish > ~/.config/fish/completions/nofault.fish",
        ],
    ),
    ("man", &["nofault man | man -l -", "nofault man --dir ~/.local/share/man/man1"]),
    (
        "db create",
        &[
            "nofault db create shop",
            "nofault db create shop --table stock --table orders --compression fast",
            "nofault db create big --stripe-over /mnt/b/big --stripe-over /mnt/c/big",
        ],
    ),
    (
        "db stat",
        &["nofault db stat shop", "nofault db stat shop --count --json", "nofault db stat shop --compressible"],
    ),
    ("db table list", &["nofault db table list shop", "nofault db table list shop --json"]),
    ("db table create", &["nofault db table create shop stock orders --compression small"]),
    ("db table rename", &["nofault db table rename shop stock goods"]),
    ("db table clear", &["nofault db table clear shop stock", "nofault db table clear shop stock orders --yes"]),
    ("db table drop", &["nofault db table drop shop orders", "nofault db table drop shop stock orders --yes"]),
    (
        "db get",
        &[
            "nofault db get shop apples --table stock",
            "nofault db get shop 0x00ff --hex",
            "nofault db get shop picture --raw > picture.png",
            "nofault db get shop apples --json",
        ],
    ),
    (
        "db put",
        &[
            "nofault db put shop apples 12 --table stock --create-table",
            "nofault db put shop 'a key with a tab\\t and a byte \\xff' value",
            "nofault db put shop picture < picture.png",
            "nofault db put shop token ann --table sessions --expires 24h",
            "nofault db put shop -- -key -value",
        ],
    ),
    ("db delete", &["nofault db delete shop apples pears --table stock", "nofault db delete shop 0x00ff --hex"]),
    (
        "db scan",
        &[
            "nofault db scan shop --table stock --prefix app --limit 10",
            "nofault db scan shop --from a --to n --reverse",
            "nofault db scan shop --json > part.ndjson",
            "nofault db scan shop --keys-only --hex",
        ],
    ),
    (
        "db load",
        &[
            "nofault db load shop entries.ndjson",
            "nofault db load copy --create --sorted < shop.ndjson",
            "nofault db load shop --format lines --table words < words.tsv",
        ],
    ),
    (
        "db dump",
        &["nofault db dump shop --out shop.ndjson", "nofault db dump shop --table stock --format lines > stock.tsv"],
    ),
    ("db verify", &["nofault db verify shop", "nofault db verify shop --json"]),
    (
        "db check",
        &["nofault db check /backups/shop", "nofault db check shop.ndjson", "nofault db check /backups/shop --json"],
    ),
    (
        "db salvage",
        &[
            "nofault db salvage broken rescued",
            "nofault db salvage broken rescued --json > lost.json",
            "nofault db salvage broken rescued --unsure",
        ],
    ),
    ("db compact", &["nofault db compact shop", "nofault db compact shop --shrink --quiet"]),
    ("db compression", &["nofault db compression shop", "nofault db compression shop small --table stock"]),
    ("db backup", &["nofault db backup shop /backups/shop", "nofault db check /backups/shop"]),
    ("db top", &["nofault db top shop", "nofault db top shop --interval 5 > load.txt", "nofault db top shop --json"]),
    (
        "ship",
        &[
            "nofault ship shop /backups/shop",
            "nofault ship shop s3://my-backups/shop --keep 90d",
            "nofault restore /backups/shop --check",
        ],
    ),
    (
        "restore",
        &[
            "nofault restore /backups/shop --list",
            "nofault restore /backups/shop again",
            "nofault restore s3://my-backups/shop before --time 2026-11-26T08:15:00Z",
            "nofault restore /backups/shop before --time 15m",
        ],
    ),
    ("db bench", &["nofault db bench --dir /mnt/nvme get-tasks commit", "nofault db bench --list"]),
];

/// Adds the examples to the help of the commands.
pub(crate) fn with_examples(root: Command) -> Command {
    EXAMPLES.iter().fold(root, |root, (path, examples)| {
        let words: Vec<&str> = path.split(' ').collect();
        let text = examples.iter().fold("Examples:".to_owned(), |text, example| text + "\n  " + example);
        add(root, &words, text)
    })
}

fn add(command: Command, path: &[&str], text: String) -> Command {
    match path.split_first() {
        None => {
            // Examples that the command has already stay behind these.
            let more = command.get_after_help().map_or(String::new(), |help| format!("\n\n{help}"));
            command.after_help(text + &more)
        }
        Some((first, rest)) => command.mut_subcommand(first, |command| add(command, rest, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a command line: quotes are removed, and redirections and the commands behind a pipe are left out.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
        for character in line.chars() {
            match character {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(std::mem::take(&mut word)),
                '|' | '<' | '>' if !is_quoted => return words,
                other => word.push(other),
            }
        }
        words.push(word);
        words
    }

    #[test]
    fn every_example_is_a_command_line_that_is_accepted() {
        for (path, examples) in EXAMPLES {
            for example in *examples {
                let parsed = crate::command().try_get_matches_from(words(example));
                assert!(parsed.is_ok(), "{path}: {example}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn every_command_of_the_database_has_examples_and_no_example_is_for_a_command_that_is_gone() {
        fn check(command: &Command, path: &str) {
            let subcommands: Vec<&Command> =
                command.get_subcommands().filter(|command| command.get_name() != "help").collect();
            if subcommands.is_empty() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Examples:"), "{path} has no examples");
            }
            subcommands.into_iter().for_each(|command| check(command, &format!("{path} {}", command.get_name())));
        }
        let root = crate::command();
        let db = root.get_subcommands().find(|command| command.get_name() == "db").expect("the command exists");
        check(db, "db");
        for (path, _) in EXAMPLES {
            let found = path.split(' ').try_fold(&root, |command, name| command.find_subcommand(name));
            assert!(found.is_some(), "there is no command {path}");
        }
        crate::command().debug_assert();
    }
}
