//! How busy a server says it is: ORCA's load report (gRPC A51), in the metadata of its responses.
//!
//! It is the protobuf message `xds.data.orca.v3.OrcaLoadReport`, so servers and clients of gRPC understand
//! it. Only the fields that a balancing policy uses are read; others are skipped.

/// The key of the metadata that has a load report.
pub const LOAD_REPORT_KEY: &str = "endpoint-load-metrics-bin";

/// The longest report that is read, in bytes.
const MAX_BYTES: usize = 4096;

/// How busy a server is. A handler puts it into the metadata of its response, under [`LOAD_REPORT_KEY`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Used share of the processor, 0 to 1; above 1 if it does more than it should.
    pub cpu_utilization: f64,
    /// Used share of the memory, 0 to 1.
    pub memory_utilization: f64,
    /// Used share of what the application takes for its limit. If it is not 0, it counts in place of the
    /// processor's.
    pub application_utilization: f64,
    /// Requests a second.
    pub requests_per_second: f64,
    /// Failed requests a second.
    pub errors_per_second: f64,
}

/// The bytes are no load report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed load report")]
pub struct LoadReportError;

/// The numbers of the fields in `OrcaLoadReport`.
mod field {
    pub(super) const CPU: u64 = 1;
    pub(super) const MEMORY: u64 = 2;
    pub(super) const QPS: u64 = 6;
    pub(super) const EPS: u64 = 7;
    pub(super) const APPLICATION: u64 = 9;
}

const WIRE_FIXED64: u64 = 1;

impl LoadReport {
    fn fields(&self) -> [(u64, f64); 5] {
        [
            (field::CPU, self.cpu_utilization),
            (field::MEMORY, self.memory_utilization),
            (field::QPS, self.requests_per_second),
            (field::EPS, self.errors_per_second),
            (field::APPLICATION, self.application_utilization),
        ]
    }

    /// The report as protobuf.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, value) in self.fields() {
            if value != 0.0 {
                bytes.push((number << 3 | WIRE_FIXED64) as u8);
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads a report. Numbers that are negative or no numbers count as 0: they come from a peer.
    ///
    /// # Errors
    /// If the bytes are not protobuf, or more than 4 KiB.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LoadReportError> {
        if bytes.len() > MAX_BYTES {
            return Err(LoadReportError);
        }
        let mut report = Self::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let tag = varint(&mut rest)?;
            match tag & 7 {
                0 => drop(varint(&mut rest)?),
                WIRE_FIXED64 => {
                    let value = take(&mut rest, 8)?
                        .try_into()
                        .map_err(|_| LoadReportError)?;
                    report.set(tag >> 3, f64::from_le_bytes(value));
                }
                2 => {
                    let len = usize::try_from(varint(&mut rest)?).map_err(|_| LoadReportError)?;
                    take(&mut rest, len)?;
                }
                5 => drop(take(&mut rest, 4)?),
                _ => return Err(LoadReportError),
            }
        }
        Ok(report)
    }

    fn set(&mut self, number: u64, value: f64) {
        let value = match value.is_finite() && value > 0.0 {
            true => value,
            false => 0.0,
        };
        let place = match number {
            field::CPU => &mut self.cpu_utilization,
            field::MEMORY => &mut self.memory_utilization,
            field::QPS => &mut self.requests_per_second,
            field::EPS => &mut self.errors_per_second,
            field::APPLICATION => &mut self.application_utilization,
            _ => return,
        };
        *place = value;
    }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], LoadReportError> {
    let (taken, after) = rest.split_at_checked(len).ok_or(LoadReportError)?;
    *rest = after;
    Ok(taken)
}

fn varint(rest: &mut &[u8]) -> Result<u64, LoadReportError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(LoadReportError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_comes_back_and_other_fields_are_skipped() {
        let report = LoadReport {
            cpu_utilization: 0.5,
            memory_utilization: 0.25,
            application_utilization: 0.75,
            requests_per_second: 1000.0,
            errors_per_second: 3.0,
        };
        assert_eq!(LoadReport::from_bytes(&report.to_bytes()), Ok(report));
        assert_eq!(LoadReport::from_bytes(&[]), Ok(LoadReport::default()));
        // A map entry (4), the old integer rate (3), a fixed32 of a later version.
        let mut bytes = vec![0x22, 2, 0x0a, 0, 0x18, 0xff, 0x01, 0x85, 0x01, 1, 2, 3, 4];
        bytes.extend(report.to_bytes());
        assert_eq!(LoadReport::from_bytes(&bytes), Ok(report));
    }

    #[test]
    fn numbers_that_make_no_sense_count_as_none() {
        for odd in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let report = LoadReport {
                cpu_utilization: odd,
                requests_per_second: 1.0,
                ..LoadReport::default()
            };
            let read = LoadReport::from_bytes(&report.to_bytes()).expect("protobuf");
            assert_eq!((read.cpu_utilization, read.requests_per_second), (0.0, 1.0));
        }
    }

    #[test]
    fn any_bytes_are_a_report_or_an_error() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(report) = LoadReport::from_bytes(bytes) {
                assert_eq!(LoadReport::from_bytes(&report.to_bytes()), Ok(report));
            }
        });
        assert!(LoadReport::from_bytes(&vec![0; MAX_BYTES + 1]).is_err());
    }
}
