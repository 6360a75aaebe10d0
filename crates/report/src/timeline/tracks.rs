//! Writes a trace: tracks, and the events on them.
//!
//! Times here are in picoseconds, Perfetto's in nanoseconds. Each time is rounded to the
//! nearest nanosecond, half a nanosecond up. This keeps the order of events, and a slice is at most
//! 1 ns longer or shorter than the original. A slice of less than that may get length 0. It is
//! kept: it ends before the next one starts, by time or by order in the file, so slices do not
//! overlap.

use dimmer_sim::Moment;
use prost::Message;

use super::perfetto::{
    APART, BY_RANK, CounterDescriptor, Kind, NEEDS_STATE, SINCE_BOOT, STATE_CLEARED, Trace,
    TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent,
};

/// The only writer of packets; 0 means no writer.
const WRITER: u32 = 1;

/// A trace as far as it has been written.
#[derive(Debug)]
pub(crate) struct Tracks {
    bytes: Vec<u8>,
    count: u32,
}

/// A track that has been described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Track(u32);

impl Tracks {
    /// An empty trace. Its times count from the start of the run, as those of a machine
    /// count from its boot.
    pub(crate) fn new() -> Self {
        let mut new = Self { bytes: Vec::new(), count: 0 };
        let defaults = TracePacketDefaults { timestamp_clock_id: Some(SINCE_BOOT) };
        new.add(TracePacket {
            sequence_flags: Some(STATE_CLEARED),
            trace_packet_defaults: Some(defaults),
            ..TracePacket::default()
        });
        new
    }

    /// Describes a track. It is shown below `parent`, after the tracks that were described before.
    pub(crate) fn describe(&mut self, parent: Option<Track>, name: &str) -> Track {
        self.track(parent, name, None)
    }

    /// Describes a track of numbers in the same way.
    pub(crate) fn describe_counter(&mut self, parent: Track, name: &str, unit: &str) -> Track {
        let counter = CounterDescriptor { unit_name: Some(unit.to_owned()) };
        self.track(Some(parent), name, Some(counter))
    }

    fn track(
        &mut self,
        parent: Option<Track>,
        name: &str,
        counter: Option<CounterDescriptor>,
    ) -> Track {
        self.count += 1;
        let track = Track(self.count);
        let descriptor = TrackDescriptor {
            uuid: Some(track.uuid()),
            name: Some(name.to_owned()),
            parent_uuid: parent.map(Track::uuid),
            counter,
            child_ordering: Some(BY_RANK),
            sibling_order_rank: i32::try_from(self.count).ok(),
            sibling_merge_behavior: Some(APART),
        };
        self.add(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() });
        track
    }

    /// Adds a slice. On each track, slices must be added in order, each after the end of the
    /// previous one.
    pub(crate) fn slice(&mut self, track: Track, (begin, end): (Moment, Moment), name: String) {
        self.event(track, begin, Kind::SliceBegin, Some(name), None);
        self.event(track, end, Kind::SliceEnd, None, None);
    }

    /// Adds each state from its start to the start of the next one, or to `end`; `None` is a gap.
    pub(crate) fn slices(
        &mut self,
        track: Track,
        states: impl IntoIterator<Item = (Moment, Option<String>)>,
        end: Moment,
    ) {
        let mut states = states.into_iter().peekable();
        while let Some((begin, name)) = states.next() {
            let until = states.peek().map_or(end, |(next, _)| end.min(*next));
            if let Some(name) = name.filter(|_| until > begin) {
                self.slice(track, (begin, until), name);
            }
        }
    }

    /// Adds an event without duration.
    pub(crate) fn instant(&mut self, track: Track, at: Moment, name: &str) {
        self.event(track, at, Kind::Instant, Some(name.to_owned()), None);
    }

    /// Sets the value that a track of numbers shows from then on.
    pub(crate) fn count(&mut self, track: Track, at: Moment, value: f64) {
        self.event(track, at, Kind::Counter, None, Some(value));
    }

    /// The bytes of the trace, which is complete after each call.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn event(
        &mut self,
        track: Track,
        at: Moment,
        kind: Kind,
        name: Option<String>,
        value: Option<f64>,
    ) {
        let event = TrackEvent {
            r#type: Some(kind.into()),
            track_uuid: Some(track.uuid()),
            name,
            double_counter_value: value,
        };
        let timestamp = Some(nanoseconds(at));
        self.add(TracePacket { timestamp, track_event: Some(event), ..TracePacket::default() });
    }

    /// Appends a trace of one packet.
    fn add(&mut self, packet: TracePacket) {
        let packet = TracePacket {
            trusted_packet_sequence_id: Some(WRITER),
            sequence_flags: packet.sequence_flags.or(Some(NEEDS_STATE)),
            ..packet
        };
        self.bytes.extend(Trace { packet: vec![packet] }.encode_to_vec());
    }
}

impl Track {
    fn uuid(self) -> u64 {
        self.0.into()
    }
}

/// Rounds to the nearest nanosecond.
fn nanoseconds(moment: Moment) -> u64 {
    moment.time().ns() + u64::from(moment.ps() % 1000 >= 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ps: u64) -> Moment {
        Moment::from_ps(ps)
    }

    #[test]
    fn moments_are_rounded_to_the_nearest_and_keep_their_order() {
        for (moment, expected) in [(0, 0), (499, 0), (500, 1), (1499, 1), (1500, 2)] {
            assert_eq!(nanoseconds(at(moment)), expected, "{moment}");
        }
        assert_eq!(nanoseconds(Moment::MAX), u64::MAX / 1000 + 1);
    }

    #[test]
    fn a_slice_that_rounding_leaves_no_length_lies_between_its_neighbours() {
        let mut tracks = Tracks::new();
        let track = tracks.describe(None, "one");
        let states = [(0, Some("a")), (5_100, Some("short")), (5_300, Some("b")), (9_000, None)];
        let states = states.map(|(begin, name)| (at(begin), name.map(str::to_owned)));
        tracks.slices(track, states, at(20_000));
        let trace = Trace::decode(tracks.into_bytes().as_slice()).unwrap();
        let events = trace.packet.iter().filter_map(|packet| {
            let event = packet.track_event.as_ref()?;
            Some((packet.timestamp?, event.r#type(), event.name()))
        });
        let expected = [
            (0, Kind::SliceBegin, "a"),
            (5, Kind::SliceEnd, ""),
            (5, Kind::SliceBegin, "short"),
            (5, Kind::SliceEnd, ""),
            (5, Kind::SliceBegin, "b"),
            (9, Kind::SliceEnd, ""),
        ];
        assert_eq!(events.collect::<Vec<_>>(), expected);
    }

    /// The bytes are those that Perfetto's own library for Python (0.59.1) writes for the same
    /// trace, packet by packet.
    #[test]
    fn bytes_are_those_of_perfettos_own_library() {
        let mut tracks = Tracks::new();
        let group = tracks.describe(None, "a");
        let counter = tracks.describe_counter(group, "b", "MHz");
        tracks.slice(group, (at(0), at(300_000)), "s".to_owned());
        tracks.instant(group, at(2_000), "i");
        tracks.count(counter, at(1_000), 4300.0);
        let expected = [
            "0a0a50016801da0303d00306",
            "0a1250016802e2030b0801120161580360017802",
            "0a1b50016802e2031408021201622801420532034d487a580360027802",
            "0a10400050015a0848015801ba0101736802",
            "0a0d40ac0250015a04480258016802",
            "0a10400250015a0848035801ba0101696802",
            "0a16400150015a0e48045802e1020000000000ccb0406802",
        ];
        let bytes = tracks.into_bytes();
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, expected.concat());
    }

    #[test]
    fn what_would_last_beyond_the_end_ends_there() {
        let mut tracks = Tracks::new();
        let track = tracks.describe(None, "one");
        let states = [(0, Some("a")), (30_000, None), (40_000, Some("b"))];
        let states = states.map(|(begin, name)| (at(begin), name.map(str::to_owned)));
        tracks.slices(track, states, at(20_000));
        let trace = Trace::decode(tracks.into_bytes().as_slice()).unwrap();
        let ends: Vec<u64> = trace.packet.iter().filter_map(|packet| packet.timestamp).collect();
        assert_eq!(ends, [0, 20]);
    }
}
