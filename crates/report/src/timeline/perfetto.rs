//! The messages of Perfetto's trace format that a timeline needs. Names, numbers and meanings are
//! those of Perfetto's `perfetto_trace.proto` (as in its package 0.59.1 for Python). Perfetto does
//! not require the fields that are left out here.
//!
//! Tests read traces with the same messages (`crates/cli/tests/it/trace.rs`). Two checks confirm
//! the numbers: the tests of `tracks` compare with bytes that Perfetto's own library has written,
//! and `ci/check-trace.py` reads our traces with that library.

/// A trace: a sequence of packets, so that concatenated traces are a trace again.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(crate) packet: Vec<TracePacket>,
}

/// What holds from a moment on, or for the whole trace: an event or the description of a track,
/// never both.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TracePacket {
    /// Time of an event (ns of the clock that the trace's first packet names).
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    /// The id of the packet's writer; there is one writer.
    #[prost(uint32, optional, tag = "10")]
    pub(crate) trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(crate) track_event: Option<TrackEvent>,
    /// [`STATE_CLEARED`] or [`NEEDS_STATE`].
    #[prost(uint32, optional, tag = "13")]
    pub(crate) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "59")]
    pub(crate) trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub(crate) track_descriptor: Option<TrackDescriptor>,
}

/// `SEQ_INCREMENTAL_STATE_CLEARED`: the state that later packets of the writer depend on starts
/// here.
pub(crate) const STATE_CLEARED: u32 = 1;

/// `SEQ_NEEDS_INCREMENTAL_STATE`: the packet depends on what the writer has sent before, here its
/// [`TracePacketDefaults`].
pub(crate) const NEEDS_STATE: u32 = 2;

/// Defaults for all later packets of the writer.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    pub(crate) timestamp_clock_id: Option<u32>,
}

/// `BUILTIN_CLOCK_BOOTTIME`: nanoseconds since the machine started; Perfetto converts all other
/// clocks to this one.
pub(crate) const SINCE_BOOT: u32 = 6;

/// A row of the timeline, or a group of rows.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TrackDescriptor {
    /// The number by which events and other tracks refer to the track; never 0.
    #[prost(uint64, optional, tag = "1")]
    pub(crate) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    /// The track below which this one is shown.
    #[prost(uint64, optional, tag = "5")]
    pub(crate) parent_uuid: Option<u64>,
    /// Set for tracks of numbers.
    #[prost(message, optional, tag = "8")]
    pub(crate) counter: Option<CounterDescriptor>,
    /// The order of the tracks below this one; [`BY_RANK`].
    #[prost(int32, optional, tag = "11")]
    pub(crate) child_ordering: Option<i32>,
    /// The place among the tracks with the same parent, smallest first.
    #[prost(int32, optional, tag = "12")]
    pub(crate) sibling_order_rank: Option<i32>,
    /// Whether it may be shown in one row with another track of the same parent; [`APART`].
    #[prost(int32, optional, tag = "15")]
    pub(crate) sibling_merge_behavior: Option<i32>,
}

/// `EXPLICIT`: by `sibling_order_rank`. The default is by name, with core 10 before core 2.
pub(crate) const BY_RANK: i32 = 3;

/// `SIBLING_MERGE_BEHAVIOR_NONE`: never. The default merges tracks of the same name, so threads of
/// the same name would be one.
pub(crate) const APART: i32 = 2;

/// A track of numbers.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    pub(crate) unit_name: Option<String>,
}

/// An event on a track.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TrackEvent {
    #[prost(enumeration = "Kind", optional, tag = "9")]
    pub(crate) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub(crate) track_uuid: Option<u64>,
    /// Name of a slice or an instant.
    #[prost(string, optional, tag = "23")]
    pub(crate) name: Option<String>,
    /// Value of a track of numbers from then on.
    #[prost(double, optional, tag = "44")]
    pub(crate) double_counter_value: Option<f64>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    Unspecified = 0,
    SliceBegin = 1,
    /// Ends the slice that started last on its track and has not ended yet.
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}
