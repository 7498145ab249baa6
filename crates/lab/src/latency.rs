//! Conversion between histograms and records: HdrHistogram V2, base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};

use crate::record::Latency;

impl Latency {
    /// Converts a histogram in nanoseconds to its form in records.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let mut bytes = Vec::new();
        // Writing to a Vec fails only when memory runs out; the percentiles then stand without the raw form.
        let raw = V2Serializer::new().serialize(histogram, &mut bytes);
        Self {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.5),
            p90_ns: histogram.value_at_quantile(0.9),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
            hdr: if raw.is_ok() { STANDARD.encode(&bytes) } else { String::new() },
        }
    }

    /// Decodes the histogram of a record; `None` where its text cannot be decoded.
    pub fn histogram(&self) -> Option<Histogram<u64>> {
        let bytes = STANDARD.decode(&self.hdr).ok()?;
        Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_its_record() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        (1..=1000).for_each(|us| histogram.record(us * 1000).unwrap());
        let latency = Latency::of(&histogram);
        let back = latency.histogram().unwrap();
        assert_eq!((back.len(), back.value_at_quantile(0.99)), (1000, latency.p99_ns));
        assert_eq!(Latency { hdr: "no histogram".into(), ..latency }.histogram(), None);
    }
}
