//! The warnings of a trial that rules act on. In a record a warning is a sentence; the fixed words of each kind are
//! written and recognised here and nowhere else, so that neither side changes without the other.

/// A kind of warning that rules act on. All other warnings are only shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarningKind {
    /// Other programs used the CPU.
    OtherLoad,
    /// The device moved more or fewer bytes than the trial asked for.
    DeviceTraffic,
    /// The device or the method was too slow for the planned rate of requests.
    RateNotKept,
}

impl WarningKind {
    const ALL: [Self; 3] = [Self::OtherLoad, Self::DeviceTraffic, Self::RateNotKept];

    /// The fixed words of the kind, which records hold.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::OtherLoad => "others used",
            Self::DeviceTraffic => "the device moved",
            Self::RateNotKept => "could not be kept",
        }
    }

    /// The kind of a warning's text; `None` for a warning that no rule acts on.
    pub(crate) fn of(warning: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| warning.contains(kind.words()))
    }

    /// Whether any of the warnings is of this kind.
    pub(crate) fn is_among(self, warnings: &[String]) -> bool {
        warnings.iter().any(|warning| Self::of(warning) == Some(self))
    }
}
