//! Comments say whose a thing is by a possessive or a compound noun, and use a noun instead of a pronoun. A crate may use a roundabout
//! phrase now and then: each of [`LIMITS`] says how often in 10,000 words of comments, and once in any case.
//!
//! It reads text, not syntax: a comment is a line that begins with `//`, or the end of one behind ` // ` outside of a string. Names in
//! backticks and examples between fences are code.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::read;
use super::words::FOLDERS;

/// Phrases that comments of a crate may have only so often.
struct Limit {
    phrases: &'static [&'static str],
    /// Times in 10,000 words of comments.
    often: usize,
    /// The better way to say it.
    instead: &'static str,
}

const LIMITS: [Limit; 3] = [
    Limit {
        phrases: &["that of", "those of", "of its own", "of their own"],
        often: 1,
        instead: "a possessive or a compound noun: `the page's checksum`, `a dedicated thread`",
    },
    Limit {
        phrases: &["beside", "anew", "meanwhile", "as a whole", "goes on", "at all", "for good", "in its place"],
        often: 4,
        instead: "`next to`, `while`, `again`, `continues`, `instead` or nothing",
    },
    Limit {
        phrases: &["what", "who", "whom", "whoever", "those", "the one", "the ones"],
        often: 20,
        instead: "the noun that is meant",
    },
];

/// Reports the crates whose comments have more of a limit's phrases than it allows.
pub(super) fn check(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> Result<()> {
    for folder in FOLDERS.into_iter().chain(["xtask"]) {
        let mut comments = Vec::new();
        for path in
            files.iter().filter(|path| path.starts_with(folder) && path.extension().is_some_and(|end| end == "rs"))
        {
            comments.push((path.display().to_string(), Comments::of(&read(&root.join(path))?)));
        }
        wrong.extend(LIMITS.iter().filter_map(|limit| limit.broken(folder, &comments)));
    }
    Ok(())
}

impl Limit {
    /// Describes how the comments of a folder's files break the limit; `None` if they keep it.
    fn broken(&self, folder: &str, comments: &[(String, Comments)]) -> Option<String> {
        let word_count: usize = comments.iter().map(|(_, comments)| comments.word_count()).sum();
        let places: Vec<String> = comments
            .iter()
            .flat_map(|(name, comments)| {
                self.phrases.iter().flat_map(move |phrase| {
                    comments.lines_with(phrase).into_iter().map(move |line| format!("{name}:{line} `{phrase}`"))
                })
            })
            .collect();
        let most = (word_count * self.often / 10_000).max(1);
        (places.len() > most).then(|| {
            format!(
                "{folder}: {} roundabout phrases in {word_count} words of comments, at most {most}; write {}:\n    {}",
                places.len(),
                self.instead,
                places.join("\n    ")
            )
        })
    }
}

/// The words of a file's comments in lower case, each with its line. A word with the line 0 is a border that no phrase crosses.
struct Comments(Vec<(usize, String)>);

impl Comments {
    fn of(text: &str) -> Self {
        let mut comments = Self(Vec::new());
        let mut in_example = false;
        for (line, number) in text.lines().zip(1..) {
            match comment_of(line) {
                Some(comment) if comment.starts_with("```") => in_example = !in_example,
                Some(comment) if !in_example && !comment.is_empty() => comments.add(comment, number),
                Some(_) => comments.end(),
                None => {
                    in_example = false;
                    comments.end();
                }
            }
        }
        comments
    }

    fn add(&mut self, comment: &str, line: usize) {
        for (at, prose) in comment.split('`').enumerate() {
            if at % 2 == 1 {
                self.end();
                continue;
            }
            for part in prose.split_inclusive(|c: char| ".,;:!?()".contains(c)) {
                let words = part.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty());
                self.0.extend(words.map(|word| (line, word.to_lowercase())));
                if part.ends_with(|c: char| c.is_ascii_punctuation()) {
                    self.end();
                }
            }
        }
    }

    fn end(&mut self) {
        self.0.push((0, String::new()));
    }

    fn word_count(&self) -> usize {
        self.0.iter().filter(|(line, _)| *line > 0).count()
    }

    /// The lines in which a phrase begins, one for each time.
    fn lines_with(&self, phrase: &str) -> Vec<usize> {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        let found = self.0.windows(phrase.len()).filter(|window| window.iter().map(|(_, word)| word).eq(phrase.iter()));
        found.map(|window| window[0].0).collect()
    }
}

/// The text of a line's comment, without the slashes; `None` for a line without one.
fn comment_of(line: &str) -> Option<&str> {
    let bare = line.trim_start();
    if let Some(comment) = bare.strip_prefix("//") {
        return Some(comment.trim_start_matches(['/', '!']).trim());
    }
    let (code, comment) = line.rsplit_once(" // ")?;
    code.matches('"').count().is_multiple_of(2).then(|| comment.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, phrase: &str) -> Vec<usize> {
        Comments::of(text).lines_with(phrase)
    }

    #[test]
    fn a_phrase_is_found_in_every_kind_of_comment_also_over_two_lines() {
        for text in ["/// Its size is that of a page.", "    //! That of a page.", "let x = 1; // as that of a page"] {
            assert_eq!(lines(text, "that of"), [1], "{text}");
        }
        assert_eq!(
            lines("fn f() {}\n    /// The size is that\n    /// of a page, as those of leaves are.", "that of"),
            [2]
        );
        assert_eq!(lines("// It goes on, and goes\n// on.", "goes on"), [1, 1]);
    }

    #[test]
    fn code_strings_examples_and_neighbouring_sentences_have_no_phrase() {
        for text in [
            "let beside = meanwhile;",
            "let s = \"// that of a page\";",
            "// into `owned` or `beside`",
            "/// ```\n/// let beside = 1; // beside\n/// ```",
            "// besides",
        ] {
            assert!(lines(text, "beside").is_empty(), "{text}");
        }
        for text in
            ["// Look at that. Of these", "// Look at that\n//\n// Of these", "// at that\nlet x = 1;\n// of these"]
        {
            assert!(lines(text, "that of").is_empty(), "{text}");
        }
        let unfinished = "/// ```\n/// let x = 1;\nfn f() {}\n// that of";
        assert_eq!(lines(unfinished, "that of"), [4]);
    }

    #[test]
    fn a_crate_may_use_a_phrase_once_and_in_more_words_more_often() {
        let limit = &LIMITS[0];
        let with = |times: usize, words: usize| {
            let text = format!("// {}{}", "that of ".repeat(times), "word ".repeat(words - 2 * times));
            limit.broken("crates/a", &[("crates/a/b.rs".to_owned(), Comments::of(&text))])
        };
        assert_eq!((with(1, 10), with(2, 20_000)), (None, None));
        let told = with(2, 19_999).unwrap();
        assert!(
            told.starts_with("crates/a: 2 roundabout phrases in 19999 words of comments, at most 1; write "),
            "{told}"
        );
        assert!(told.ends_with("crates/a/b.rs:1 `that of`\n    crates/a/b.rs:1 `that of`"), "{told}");
    }
}
