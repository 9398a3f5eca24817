//! The model of the store. It decides whether a correct store can have given an answer.
//!
//! Every write of a record has a version, counted from 1 in the order of issue. A removal has a
//! version too. Writes in flight at the same time may take effect in either order, so the model keeps
//! for each record the *range* of versions that a read may return:
//!
//! ```text
//!   version   1     2     3     4     5
//!             done  done  done  in flight
//!                         ▲           ▲
//!                      floor        issued        a read that starts now may see 3, 4 or 5
//! ```
//!
//! `floor` rises when a write ends: that write has overwritten every version whose own write had
//! ended before it was issued. A read's range goes from the `floor` when the read is issued to the
//! `issued` when its answer comes. Without concurrent writes the range holds exactly one version.

use std::collections::{BTreeSet, VecDeque};

use smallvec::SmallVec;

use starling_sample_services::kv::record::{
    FIRST_VERSION, id_at, key_at, place, place_of, version_of,
};

/// An answer that a correct store cannot give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongAnswer {
    /// The answer says that there is no record, but there must be one.
    #[error("key {key}: not found, but write {floor} had ended before the call began")]
    Missing {
        /// The key.
        key: String,
        /// The oldest version that the answer could have been.
        floor: u32,
    },
    /// No write of the key stored the value.
    #[error("key {key}: no write stored its value")]
    Corrupt {
        /// The key.
        key: String,
    },
    /// A later write had overwritten the value before the call began.
    #[error("key {key}: the value of write {version}, but {floor} had ended before the call began")]
    Stale {
        /// The key.
        key: String,
        /// The version answered.
        version: u32,
        /// The oldest version that the answer could have been.
        floor: u32,
    },
    /// The value is that of a write that the load has not issued.
    #[error("key {key}: the value of write {version}, but the load has issued only {issued}")]
    Unwritten {
        /// The key.
        key: String,
        /// The version answered.
        version: u32,
        /// The last version issued.
        issued: u32,
    },
    /// A scan returned a key that the load never wrote.
    #[error("a scan returned the key {key}, which the load never wrote")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A scan returned keys out of order, twice, or from before its start.
    #[error("a scan from {start} returned the key {key} out of order")]
    OutOfOrder {
        /// The first key that the scan asked for.
        start: String,
        /// The key that is out of order.
        key: String,
    },
    /// An answer has more or fewer parts than the request asked for.
    #[error("{what}: {expected} expected, got {got}")]
    Count {
        /// The parts.
        what: &'static str,
        /// The requested number.
        expected: usize,
        /// The received number, which is at most one above the requested number.
        got: usize,
    },
    /// A removal's answer says wrongly whether the record existed.
    #[error("key {key}: a removal said existed = {said}")]
    Existed {
        /// The key.
        key: String,
        /// The answer.
        said: bool,
    },
    /// The answer belongs to another operation than the one that was asked for.
    #[error("the answer to {asked} is one to {got}")]
    Kind {
        /// The operation.
        asked: &'static str,
        /// The answer's kind.
        got: &'static str,
    },
}

/// One record.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The last version issued; 0: never written.
    issued: u32,
    /// The oldest version that a read which starts now may return.
    floor: u32,
    /// The last version that is a removal. 0: none; version 0 is the absence at the start.
    removed: u32,
}

/// A record that a scan found.
struct Row<'a> {
    place: u64,
    id: u64,
    /// Its floor now.
    floor: u32,
    value: &'a [u8],
}

/// A point in the model's history, for scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// The contents that the store can have.
#[derive(Debug)]
pub struct Model {
    states: Vec<State>,
    /// The places of all records ever written.
    places: BTreeSet<u64>,
    /// For each rise of a floor, the record and its floor before, newest last. The model keeps a rise
    /// while a scan in flight may need it.
    risen: VecDeque<(u64, u32)>,
    /// The moment of `risen[0]`.
    risen_from: Moment,
    /// When each scan in flight began, oldest first.
    scans: VecDeque<Moment>,
}

impl Model {
    /// The model of a store with `records` records at their first version.
    pub fn new(records: u64) -> Self {
        let loaded = State {
            issued: FIRST_VERSION,
            floor: FIRST_VERSION,
            removed: 0,
        };
        Self {
            states: vec![loaded; records as usize],
            places: (0..records).map(place).collect(),
            risen: VecDeque::new(),
            risen_from: Moment(0),
            scans: VecDeque::new(),
        }
    }

    /// The number of records ever written, which is the number of the next new one.
    pub fn records(&self) -> u64 {
        self.states.len() as u64
    }

    /// Issues a write; returns its version. `id` is at most [`Model::records`].
    pub(crate) fn begin_put(&mut self, id: u64) -> u32 {
        if id == self.records() {
            self.states.push(State::default());
            self.places.insert(place(id));
        }
        let state = &mut self.states[id as usize];
        state.issued += 1;
        state.issued
    }

    /// Issues a removal. Returns its version, and whether it must find the record. `None`: it may or
    /// may not find it.
    pub(crate) fn begin_delete(&mut self, id: u64) -> (u32, Option<bool>) {
        let state = &mut self.states[id as usize];
        let existed = (state.floor == state.issued).then_some(state.removed != state.issued);
        state.issued += 1;
        state.removed = state.issued;
        (state.issued, existed)
    }

    /// Ends a write or removal. `oldest` is the oldest version of the record that was in
    /// flight when this one was issued, itself included.
    pub(crate) fn end_write(&mut self, id: u64, oldest: u32) {
        let state = &mut self.states[id as usize];
        if oldest > state.floor {
            if !self.scans.is_empty() {
                self.risen.push_back((id, state.floor));
            }
            state.floor = oldest;
        }
    }

    /// The last version issued.
    pub(crate) fn issued(&self, id: u64) -> u32 {
        self.states[id as usize].issued
    }

    /// Issues a read; returns the floor for [`Model::check`].
    pub(crate) fn floor(&self, id: u64) -> u32 {
        self.states[id as usize].floor
    }

    /// Checks the answer to a read.
    pub(crate) fn check(
        &self,
        id: u64,
        floor: u32,
        found: Option<&[u8]>,
    ) -> Result<(), WrongAnswer> {
        let state = self.states[id as usize];
        let key = || name(place(id));
        let Some(bytes) = found else {
            // If the last removal is below the floor, all earlier removals are too.
            if state.removed >= floor {
                return Ok(());
            }
            return Err(WrongAnswer::Missing { key: key(), floor });
        };
        match version_of(id, bytes) {
            None => Err(WrongAnswer::Corrupt { key: key() }),
            Some(version) if version > state.issued => Err(WrongAnswer::Unwritten {
                key: key(),
                version,
                issued: state.issued,
            }),
            Some(version) if version < floor => Err(WrongAnswer::Stale {
                key: key(),
                version,
                floor,
            }),
            Some(_) => Ok(()),
        }
    }

    /// Issues a scan.
    pub(crate) fn begin_scan(&mut self) -> Moment {
        let now = Moment(self.risen_from.0 + self.risen.len() as u64);
        self.scans.push_back(now);
        now
    }

    /// Checks the answer to a scan and ends it. `began` is the result of [`Model::begin_scan`].
    pub(crate) fn end_scan<'a>(
        &mut self,
        began: Moment,
        start: u64,
        limit: usize,
        found: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), WrongAnswer> {
        let result = self.check_scan(began, start, limit, found);
        let index = self.scans.iter().position(|&scan| scan == began);
        self.scans
            .remove(index.expect("a scan ends once, after it began"));
        let keep_from = self.scans.front().map_or(
            Moment(self.risen_from.0 + self.risen.len() as u64),
            |&oldest| oldest,
        );
        self.risen
            .drain(..(keep_from.0 - self.risen_from.0) as usize);
        self.risen_from = keep_from;
        result
    }

    fn check_scan<'a>(
        &self,
        began: Moment,
        start: u64,
        limit: usize,
        found: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), WrongAnswer> {
        let risen = self.risen.range((began.0 - self.risen_from.0) as usize..);
        // Few floors rise during a scan, so a linear search is faster than an index.
        let floor_then = |id, floor_now| {
            let before = risen.clone().find(|(risen, _)| *risen == id);
            before.map_or(floor_now, |&(_, floor)| floor)
        };
        let must_be_absent = |place| {
            let id = id_at(place);
            self.check(id, floor_then(id, self.floor(id)), None)
        };
        let mut rows: SmallVec<[Row<'_>; 128]> = SmallVec::new();
        for (key, value) in found {
            if rows.len() == limit {
                return Err(WrongAnswer::Count {
                    what: "records of a scan",
                    expected: limit,
                    got: limit + 1,
                });
            }
            let unknown = || WrongAnswer::UnknownKey {
                key: String::from_utf8_lossy(key).into_owned(),
            };
            let place = place_of(key).ok_or_else(unknown)?;
            let id = id_at(place);
            if id >= self.records() {
                return Err(unknown());
            }
            rows.push(Row {
                place,
                id,
                floor: 0,
                value,
            });
        }
        // Neighbours in key order are far apart in `states`, so each of these loads is a cache
        // miss. Without other work in between, the misses overlap.
        for row in &mut rows {
            row.floor = self.floor(row.id);
        }
        let mut known = self.places.range(start..).copied();
        let count = rows.len();
        for row in rows {
            loop {
                match known.next() {
                    Some(skipped) if skipped < row.place => must_be_absent(skipped)?,
                    Some(same) if same == row.place => break,
                    _ => {
                        return Err(WrongAnswer::OutOfOrder {
                            start: name(start),
                            key: name(row.place),
                        });
                    }
                }
            }
            self.check(row.id, floor_then(row.id, row.floor), Some(row.value))?;
        }
        if count < limit {
            // A scan that returns fewer records than its limit has reached the end of the store.
            known.try_for_each(must_be_absent)?;
        }
        Ok(())
    }
}

fn name(place: u64) -> String {
    String::from_utf8_lossy(&key_at(place)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_sample_services::kv::record::{Key, Value, key, value};

    /// The keys of the first `count` records in order, with their values at `version`.
    fn records(count: u64, version: u32) -> Vec<(Key, Value)> {
        let mut places: Vec<u64> = (0..count).map(place).collect();
        places.sort_unstable();
        let record = |place| (key_at(place), value(id_at(place), version));
        places.into_iter().map(record).collect()
    }

    fn slices(records: &[(Key, Value)]) -> impl Iterator<Item = (&[u8], &[u8])> {
        records.iter().map(|(key, value)| (&key[..], &value[..]))
    }

    fn scan(model: &mut Model, limit: usize, records: &[(Key, Value)]) -> Result<(), WrongAnswer> {
        let began = model.begin_scan();
        model.end_scan(began, 0, limit, slices(records))
    }

    #[test]
    fn without_concurrent_writes_one_version_is_right() {
        let mut model = Model::new(10);
        let version = model.begin_put(3);
        model.end_write(3, version);
        let floor = model.floor(3);
        assert_eq!(model.check(3, floor, Some(&value(3, 2))), Ok(()));
        assert!(matches!(
            model.check(3, floor, Some(&value(3, 1))),
            Err(WrongAnswer::Stale {
                version: 1,
                floor: 2,
                ..
            })
        ));
        assert!(matches!(
            model.check(3, floor, Some(&value(3, 3))),
            Err(WrongAnswer::Unwritten {
                version: 3,
                issued: 2,
                ..
            })
        ));
        assert!(matches!(
            model.check(3, floor, Some(&value(4, 2))),
            Err(WrongAnswer::Corrupt { .. })
        ));
        assert!(matches!(
            model.check(3, floor, None),
            Err(WrongAnswer::Missing { floor: 2, .. })
        ));
    }

    #[test]
    fn a_read_concurrent_with_a_write_may_return_either_version() {
        let mut model = Model::new(1);
        let floor = model.floor(0);
        let version = model.begin_put(0);
        for seen in [1, 2] {
            assert_eq!(model.check(0, floor, Some(&value(0, seen))), Ok(()));
        }
        model.end_write(0, version);
        // The read that began before the write ended may return the old version; a new read may not.
        assert_eq!(model.check(0, floor, Some(&value(0, 1))), Ok(()));
        assert!(model.check(0, model.floor(0), Some(&value(0, 1))).is_err());
    }

    #[test]
    fn concurrent_writes_may_end_in_either_order() {
        let mut model = Model::new(1);
        let first = model.begin_put(0);
        model.begin_put(0);
        // The second write began while the first was in flight, so for both `oldest` is the first.
        model.end_write(0, first);
        model.end_write(0, first);
        for seen in [2, 3] {
            assert_eq!(
                model.check(0, model.floor(0), Some(&value(0, seen))),
                Ok(())
            );
        }
        assert!(model.check(0, model.floor(0), Some(&value(0, 1))).is_err());
        // After a write without concurrent writes, one version is right again.
        let third = model.begin_put(0);
        model.end_write(0, third);
        assert!(model.check(0, model.floor(0), Some(&value(0, 3))).is_err());
    }

    #[test]
    fn a_removed_record_is_absent_until_a_write() {
        let mut model = Model::new(1);
        let (version, existed) = model.begin_delete(0);
        assert_eq!(existed, Some(true));
        model.end_write(0, version);
        let floor = model.floor(0);
        assert_eq!(model.check(0, floor, None), Ok(()));
        assert!(model.check(0, floor, Some(&value(0, 1))).is_err());
        let (_, existed) = model.begin_delete(0);
        assert_eq!(existed, Some(false));
        let (_, unknown) = model.begin_delete(0);
        assert_eq!(unknown, None);
        let version = model.begin_put(0);
        model.end_write(0, version);
        assert!(model.check(0, model.floor(0), None).is_err());
    }

    #[test]
    fn a_scan_must_be_complete_in_order_and_within_its_limit() {
        let mut model = Model::new(10);
        let all = records(10, 1);
        assert_eq!(scan(&mut model, 10, &all), Ok(()));
        assert_eq!(scan(&mut model, 20, &all), Ok(()));
        assert_eq!(scan(&mut model, 4, &all[..4]), Ok(()));
        assert!(matches!(
            scan(&mut model, 4, &all[..5]),
            Err(WrongAnswer::Count {
                expected: 4,
                got: 5,
                ..
            })
        ));
        // A record is missing in the middle, then at the end.
        let mut gap = all.clone();
        gap.remove(4);
        assert!(matches!(
            scan(&mut model, 9, &gap),
            Err(WrongAnswer::Missing { .. })
        ));
        assert!(matches!(
            scan(&mut model, 10, &all[..9]),
            Err(WrongAnswer::Missing { .. })
        ));
        let mut swapped = all.clone();
        swapped.swap(2, 3);
        assert!(scan(&mut model, 10, &swapped).is_err());
        let twice = [all[0], all[0]];
        assert!(matches!(
            scan(&mut model, 2, &twice),
            Err(WrongAnswer::OutOfOrder { .. })
        ));
        let strange = [(*b"not a key at all", all[0].1)];
        assert!(matches!(
            scan(&mut model, 1, &strange),
            Err(WrongAnswer::UnknownKey { .. })
        ));
        let never_written = [(key(10), value(10, 1))];
        assert!(matches!(
            scan(&mut model, 1, &never_written),
            Err(WrongAnswer::UnknownKey { .. })
        ));
    }

    #[test]
    fn a_scan_must_begin_at_its_start() {
        let mut model = Model::new(10);
        let all = records(10, 1);
        let third = place_of(&all[3].0).unwrap();
        let began = model.begin_scan();
        assert_eq!(model.end_scan(began, third, 3, slices(&all[3..6])), Ok(()));
        let began = model.begin_scan();
        assert!(matches!(
            model.end_scan(began, third, 3, slices(&all[2..5])),
            Err(WrongAnswer::OutOfOrder { .. })
        ));
        // A scan that starts behind the last key returns nothing.
        let end = place_of(&all[9].0).unwrap() + 1;
        let began = model.begin_scan();
        assert_eq!(model.end_scan(began, end, 3, slices(&[])), Ok(()));
    }

    #[test]
    fn a_scan_concurrent_with_writes_may_return_the_records_of_its_beginning() {
        let mut model = Model::new(2);
        let old = records(2, 1);
        let began = model.begin_scan();
        // An update and an insert begin and end while the scan is under way.
        let version = model.begin_put(0);
        model.end_write(0, version);
        let version = model.begin_put(2);
        model.end_write(2, version);
        assert_eq!(model.end_scan(began, 0, 10, slices(&old)), Ok(()));
        // A scan that begins now must return the results of both writes.
        assert!(scan(&mut model, 10, &old).is_err());
        assert!(model.risen.is_empty() && model.scans.is_empty());
    }

    #[test]
    fn the_model_keeps_history_back_to_the_oldest_scan_in_flight() {
        let mut model = Model::new(1);
        let first = model.begin_scan();
        let version = model.begin_put(0);
        model.end_write(0, version);
        let second = model.begin_scan();
        assert_eq!(model.risen.len(), 1);
        assert_eq!(model.end_scan(first, 0, 1, slices(&records(1, 1))), Ok(()));
        assert_eq!(model.risen.len(), 0);
        assert!(
            model
                .end_scan(second, 0, 1, slices(&records(1, 1)))
                .is_err()
        );
    }
}
