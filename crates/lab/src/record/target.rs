//! The kinds of data that trials work on. A record holds a target's label as text; it is taken apart here and nowhere else.

/// The kind of a target, by its label in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind<'a> {
    /// No target: the label of a reason that holds for the whole machine.
    None,
    /// Files in the lab's folder.
    File,
    /// Anonymous memory, which belongs to no file.
    Memory,
    /// Files whose whole data fits in memory.
    InMemory,
    /// A RAM-backed device.
    Ram,
    /// A raw device, which is only read; with its name where a run has several.
    Device(Option<&'a str>),
    /// Several files, or several RAM-backed devices, striped as one.
    Striped {
        /// Whether the parts of the stripes are RAM-backed devices.
        in_ram: bool,
    },
    /// An unknown target: of a newer nofault.
    Other,
}

impl<'a> TargetKind<'a> {
    /// The kind that a label names.
    pub fn of(label: &'a str) -> Self {
        let (head, rest) = label.split_once('-').map_or((label, None), |(head, rest)| (head, Some(rest)));
        match (head, rest) {
            ("", None) => Self::None,
            ("file", None) => Self::File,
            ("memory", None) => Self::Memory,
            ("in", Some("memory")) => Self::InMemory,
            ("ram", None) => Self::Ram,
            ("device", name) => Self::Device(name),
            ("striped", _) => Self::Striped { in_ram: false },
            ("ram", Some(rest)) if Self::of(rest) == (Self::Striped { in_ram: false }) => {
                Self::Striped { in_ram: true }
            }
            _ => Self::Other,
        }
    }

    /// Whether the data lies on RAM-backed devices, which have a different memory limit.
    pub fn is_ram_backed(self) -> bool {
        matches!(self, Self::Ram | Self::Striped { in_ram: true })
    }

    /// The label of one part of a striped target; `None` for other targets.
    pub fn part(self) -> Option<&'static str> {
        match self {
            Self::Striped { in_ram: true } => Some("ram"),
            Self::Striped { in_ram: false } => Some("file"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_in_records_has_its_kind() {
        let kinds = [
            ("", TargetKind::None),
            ("file", TargetKind::File),
            ("memory", TargetKind::Memory),
            ("in-memory", TargetKind::InMemory),
            ("ram", TargetKind::Ram),
            ("device", TargetKind::Device(None)),
            ("device-nvme0n1", TargetKind::Device(Some("nvme0n1"))),
            ("striped-2", TargetKind::Striped { in_ram: false }),
            ("ram-striped-2", TargetKind::Striped { in_ram: true }),
            ("ram-of-tomorrow", TargetKind::Other),
            ("filed", TargetKind::Other),
        ];
        for (label, kind) in kinds {
            assert_eq!(TargetKind::of(label), kind, "{label}");
        }
        assert!(TargetKind::of("ram-striped-4").is_ram_backed() && !TargetKind::of("striped-4").is_ram_backed());
    }
}
