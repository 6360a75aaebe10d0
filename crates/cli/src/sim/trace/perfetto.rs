//! The messages of Perfetto's own trace format that a time line needs, by the names and numbers of
//! Perfetto's `perfetto_trace.proto` (as its package 0.59.1 for Python has it), from which their
//! meaning is taken too. What is left out here Perfetto does not ask for.
//!
//! Tests read traces with the same messages (`crates/cli/tests/it/trace.rs`). That the numbers are
//! right is told by bytes that Perfetto's own library has written, in the tests of `tracks`, and by
//! `ci/check-trace.py`, which has that library read our traces.

/// A trace: packets one behind the other, so that traces put one behind the other are a trace
/// again.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(crate) packet: Vec<TracePacket>,
}

/// What holds from a moment on, or for the whole trace: an event or the description of a track,
/// never both.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TracePacket {
    /// When it happens, for events (ns of the clock that the trace's first packet names).
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    /// Which writer's packet this is; there is one.
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

/// `SEQ_INCREMENTAL_STATE_CLEARED`: what later packets of the writer count on begins here.
pub(crate) const STATE_CLEARED: u32 = 1;

/// `SEQ_NEEDS_INCREMENTAL_STATE`: the packet counts on what the writer has said before, here its
/// [`TracePacketDefaults`].
pub(crate) const NEEDS_STATE: u32 = 2;

/// What holds for all later packets of the writer that do not say otherwise.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    pub(crate) timestamp_clock_id: Option<u32>,
}

/// `BUILTIN_CLOCK_BOOTTIME`: nanoseconds since the machine began, and what Perfetto converts all
/// other clocks to.
pub(crate) const SINCE_BOOT: u32 = 6;

/// A row of the time line, or a group of rows.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TrackDescriptor {
    /// Its number, by which events and other tracks name it; 0 is no track's.
    #[prost(uint64, optional, tag = "1")]
    pub(crate) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    /// The track that it is shown below.
    #[prost(uint64, optional, tag = "5")]
    pub(crate) parent_uuid: Option<u64>,
    /// For tracks of numbers.
    #[prost(message, optional, tag = "8")]
    pub(crate) counter: Option<CounterDescriptor>,
    /// In what order the tracks below it are shown; [`BY_RANK`].
    #[prost(int32, optional, tag = "11")]
    pub(crate) child_ordering: Option<i32>,
    /// Its place among the tracks below the same one, smallest first.
    #[prost(int32, optional, tag = "12")]
    pub(crate) sibling_order_rank: Option<i32>,
    /// Whether it may be shown in one row with another below the same track; [`APART`].
    #[prost(int32, optional, tag = "15")]
    pub(crate) sibling_merge_behavior: Option<i32>,
}

/// `EXPLICIT`: by `sibling_order_rank`. By default it is by name, with core 10 before core 2.
pub(crate) const BY_RANK: i32 = 3;

/// `SIBLING_MERGE_BEHAVIOR_NONE`: never. By default tracks of one name are, so threads of one name
/// would be one.
pub(crate) const APART: i32 = 2;

/// A track of numbers.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CounterDescriptor {
    #[prost(string, optional, tag = "6")]
    pub(crate) unit_name: Option<String>,
}

/// Something that happens on a track.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TrackEvent {
    #[prost(enumeration = "Kind", optional, tag = "9")]
    pub(crate) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub(crate) track_uuid: Option<u64>,
    /// Of a slice or an instant.
    #[prost(string, optional, tag = "23")]
    pub(crate) name: Option<String>,
    /// Of a track of numbers: what holds from then on.
    #[prost(double, optional, tag = "44")]
    pub(crate) double_counter_value: Option<f64>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    Unspecified = 0,
    SliceBegin = 1,
    /// Of the slice that began last on its track and has not ended yet.
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}
