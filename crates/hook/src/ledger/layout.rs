//! Where everything lies in a ledger's file: the types here describe bytes in the file and in its
//! mappings, and no value of them is ever made. The version ([`VERSION`]) changes with them.

use std::mem::offset_of;

/// "dimmerlg", as the first bytes of the file.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"dimmerlg");
/// Changes with the layout.
pub(super) const VERSION: u32 = 9;

/// The start of the file.
#[repr(C)]
struct HeadLayout {
    magic: u64,
    version: u32,
    /// The number of slots that were reserved.
    slot_count: u32,
    /// Sites that can be read.
    site_count: u32,
    object_count: u32,
    /// The number of hardware threads in use, of those that calls move to, plus one; 0 if the
    /// observer has not decided. Written by the observer.
    used_cores: u32,
    /// Bytes of texts in use.
    text_used: u32,
    /// What timing adds to calls and to gaps, and what counting takes (ticks).
    inside: u64,
    between: u64,
    counting: u64,
    /// The time until which calls may move, in ticks of the time-stamp counter; 0 without a limit.
    /// Written by the observer.
    holds_until: u64,
    /// Threads that found no slot.
    left_out: u32,
    /// Whether calls can move.
    moves: u32,
    /// Numbers of sites that are taken; those from `site_count` on cannot be read yet.
    sites_taken: u32,
    /// Loaded files for which there was no room.
    files_left_out: u32,
    /// The number of the set of wide CPUs in use, plus one; 0 if none is. Written by the observer.
    wide_set: u32,
    /// How often the observer has ordered that hooks be taken out, modulo 2³².
    unhook_orders: u32,
    unused: [u64; 5],
}

pub(super) const MAGIC_AT: usize = offset_of!(HeadLayout, magic);
pub(super) const VERSION_AT: usize = offset_of!(HeadLayout, version);
pub(super) const SLOT_COUNT: usize = offset_of!(HeadLayout, slot_count);
pub(super) const SITE_COUNT: usize = offset_of!(HeadLayout, site_count);
pub(super) const OBJECT_COUNT: usize = offset_of!(HeadLayout, object_count);
pub(super) const USED_CORES: usize = offset_of!(HeadLayout, used_cores);
pub(super) const TEXT_USED: usize = offset_of!(HeadLayout, text_used);
pub(super) const INSIDE: usize = offset_of!(HeadLayout, inside);
pub(super) const BETWEEN: usize = offset_of!(HeadLayout, between);
pub(super) const COUNTING: usize = offset_of!(HeadLayout, counting);
pub(super) const HOLDS_UNTIL: usize = offset_of!(HeadLayout, holds_until);
pub(crate) const LEFT_OUT: usize = offset_of!(HeadLayout, left_out);
pub(super) const MOVES: usize = offset_of!(HeadLayout, moves);
pub(super) const SITES_TAKEN: usize = offset_of!(HeadLayout, sites_taken);
pub(super) const FILES_LEFT_OUT: usize = offset_of!(HeadLayout, files_left_out);
pub(super) const WIDE_SET: usize = offset_of!(HeadLayout, wide_set);
pub(crate) const UNHOOK_ORDERS: usize = offset_of!(HeadLayout, unhook_orders);
/// Length of the head.
pub(super) const HEAD_BYTES: usize = size_of::<HeadLayout>();

/// A hooked file.
#[repr(C)]
struct ObjectLayout {
    base: u64,
    path: TextPlace,
    problem: TextPlace,
    unused: u64,
}

/// The place of a text among the texts.
#[repr(C)]
struct TextPlace {
    at: u32,
    length: u32,
}

pub(super) const OBJECT_BASE: usize = offset_of!(ObjectLayout, base);
pub(super) const OBJECT_PATH: usize = offset_of!(ObjectLayout, path);
pub(super) const OBJECT_PROBLEM: usize = offset_of!(ObjectLayout, problem);
pub(super) const OBJECT_BYTES: usize = size_of::<ObjectLayout>();
pub(super) const TEXT_LENGTH: usize = offset_of!(TextPlace, length);
pub(super) const TEXT_PLACE_BYTES: usize = size_of::<TextPlace>();

/// Offset of the table of hooked files.
pub(super) const OBJECTS_AT: usize = HEAD_BYTES;
/// The most hooked files.
pub(super) const OBJECTS: usize = 512;

/// Offset of the texts.
pub(super) const TEXTS_AT: usize = 5 * PAGE;
/// Bytes of all texts.
pub(super) const TEXT_BYTES: usize = 64 * PAGE;
/// Bytes of one text (`PATH_MAX` of Linux).
pub(super) const LONGEST_TEXT: usize = 4096;

/// Offset of the table of hooked functions.
pub(super) const SITES_AT: usize = TEXTS_AT + TEXT_BYTES;
/// The most hooked functions.
pub(crate) const SITES: usize = 32_768;
pub(super) const SITE_BYTES: usize = 8;
/// Bits of a site's address. Addresses of programs have 47.
pub(super) const ADDRESS_BITS: u32 = 48;

/// Offset of the decisions.
pub(super) const DECISIONS_AT: usize = SITES_AT + SITES * SITE_BYTES;
/// The first byte of a decision is not zero if calls move, the second if the hook is to be taken
/// out.
pub(super) const DECISION_BYTES: usize = 4;
pub(super) const TAKES_OUT: usize = 1;

/// Offset of the slots.
pub(super) const SLOTS_AT: usize = DECISIONS_AT + SITES * DECISION_BYTES;
/// The most slots.
pub(crate) const SLOTS: usize = 512;
/// Distance from one slot to the next.
pub(crate) const SLOT_BYTES: usize = size_of::<SlotLayout>().next_multiple_of(PAGE);

/// A thread's slot: its data, what the thread and the observer write alternately (each on a cache
/// line of its own), the ring of timed calls, and the counters.
#[repr(C)]
struct SlotLayout {
    tid: u32,
    pid: u32,
    /// If this is one, all calls are timed.
    period: u32,
    claimed: u32,
    dropped: u64,
    moved: u64,
    room: u32,
    /// The wide phases of the thread: [`crate::PhaseCounts`].
    to_wide: u32,
    back: u32,
    stays: u32,
    wide_ns: u64,
    unused: u64,
    /// The number of records ever put into the ring; the next goes to this number modulo
    /// [`RECORDS`].
    head: u64,
    after_head: [u64; 7],
    tail: u64,
    after_tail: [u64; 7],
    ring: [Record; RECORDS],
    /// The number of calls of each site, modulo 2³²: hot counters share a core's nearest cache with
    /// the program.
    counters: [u32; SITES],
}

pub(crate) const TID: usize = offset_of!(SlotLayout, tid);
pub(crate) const PID: usize = offset_of!(SlotLayout, pid);
pub(crate) const PERIOD: usize = offset_of!(SlotLayout, period);
pub(crate) const CLAIMED: usize = offset_of!(SlotLayout, claimed);
pub(crate) const DROPPED: usize = offset_of!(SlotLayout, dropped);
pub(crate) const MOVED: usize = offset_of!(SlotLayout, moved);
pub(crate) const ROOM: usize = offset_of!(SlotLayout, room);
pub(crate) const TO_WIDE: usize = offset_of!(SlotLayout, to_wide);
pub(crate) const BACK: usize = offset_of!(SlotLayout, back);
pub(crate) const STAYS: usize = offset_of!(SlotLayout, stays);
pub(crate) const WIDE_NS: usize = offset_of!(SlotLayout, wide_ns);
pub(crate) const HEAD: usize = offset_of!(SlotLayout, head);
pub(crate) const TAIL: usize = offset_of!(SlotLayout, tail);
/// Offset of the ring in a slot.
pub(crate) const RING: usize = offset_of!(SlotLayout, ring);
/// Offset of the counters in a slot.
pub(crate) const COUNTERS: usize = offset_of!(SlotLayout, counters);
/// Bytes of a counter.
pub(crate) const COUNTER_BYTES: usize = size_of::<u32>();

/// The number of records in the ring. A thread makes up to 160 between two looks of the observer
/// (`PAIRS_PER_SECOND`): the ring lasts for three looks. Calls that do not fit are counted and not
/// timed.
pub(crate) const RECORDS: usize = 512;

/// A timed call.
#[repr(C)]
struct Record {
    /// Start and end (ticks of the time-stamp counter). Without an end, the record is not complete.
    begin: u64,
    end: u64,
    /// The function's number.
    site: u32,
    /// [`FOLLOWS`], [`INTERRUPTED`], [`MIGRATED_CALL`], and above [`GOES_ON_SHIFT`] the number of
    /// the function in which the call went on, plus one; zero if it did not.
    flags: u32,
    /// Duration of a chain of multiplications right after the call, and of one right before it
    /// (ticks); zero if there was none. Assembly writes both as one word.
    chain_after: u32,
    chain_before: u32,
}

pub(crate) const RECORD_BEGIN: usize = offset_of!(Record, begin);
pub(crate) const RECORD_END: usize = offset_of!(Record, end);
pub(crate) const RECORD_SITE: usize = offset_of!(Record, site);
pub(crate) const RECORD_FLAGS: usize = offset_of!(Record, flags);
pub(crate) const CHAIN_AFTER: usize = offset_of!(Record, chain_after);
pub(crate) const CHAIN_BEFORE: usize = offset_of!(Record, chain_before);
pub(crate) const RECORD_BYTES: usize = size_of::<Record>();
/// The same, as a power of two.
pub(crate) const RECORD_SHIFT: u32 = RECORD_BYTES.trailing_zeros();

/// The call follows the one before it in the ring: the thread made no hooked call in between.
pub(crate) const FOLLOWS: u32 = 1;
/// The kernel interrupted the call.
pub(crate) const INTERRUPTED: u32 = 2;
/// The call was moved. Its time includes the way there and back.
pub(crate) const MIGRATED_CALL: u32 = 4;
/// Position in the flags of the number of the function in which the call went on.
pub(crate) const GOES_ON_SHIFT: u32 = 8;

pub(super) const PAGE: usize = 4096;

// Another version of Dimmer may read the file: these are what `VERSION` stands for.
const _: () = assert!(MAGIC_AT == 0 && VERSION_AT == 8 && HEAD_BYTES == 128);
const _: () = assert!(SLOT_COUNT == 12 && SITE_COUNT == 16 && OBJECT_COUNT == 20);
const _: () = assert!(USED_CORES == 24 && TEXT_USED == 28 && INSIDE == 32 && BETWEEN == 40);
const _: () = assert!(COUNTING == 48 && HOLDS_UNTIL == 56 && LEFT_OUT == 64 && MOVES == 68);
const _: () = assert!(SITES_TAKEN == 72 && FILES_LEFT_OUT == 76 && WIDE_SET == 80);
const _: () = assert!(UNHOOK_ORDERS == 84);
const _: () = assert!(OBJECT_BASE == 0 && OBJECT_PATH == 8 && OBJECT_PROBLEM == 16);
const _: () = assert!(OBJECT_BYTES == 32 && TEXT_LENGTH == 4 && TEXT_PLACE_BYTES == 8);
const _: () = assert!(TID == 0 && PID == 4 && PERIOD == 8 && CLAIMED == 12 && DROPPED == 16);
const _: () = assert!(TO_WIDE == 36 && BACK == 40 && STAYS == 44 && WIDE_NS == 48);
const _: () = assert!(MOVED == 24 && ROOM == 32 && HEAD == 64 && TAIL == 128 && RING == 192);
const _: () = assert!(RECORD_BEGIN == 0 && RECORD_END == 8 && RECORD_SITE == 16);
const _: () = assert!(RECORD_FLAGS == 20 && CHAIN_AFTER == 24 && CHAIN_BEFORE == 28);
const _: () = assert!(RECORD_BYTES == 32 && COUNTERS == RING + RECORDS * RECORD_BYTES);

const _: () = assert!(OBJECTS_AT + OBJECTS * OBJECT_BYTES <= TEXTS_AT);
const _: () = assert!(SITES_AT.is_multiple_of(PAGE) && DECISIONS_AT.is_multiple_of(PAGE));
const _: () = assert!(SLOTS_AT.is_multiple_of(PAGE) && COUNTERS.is_multiple_of(64));
const _: () = assert!(RECORDS.is_power_of_two() && RECORD_BYTES.is_power_of_two());
const _: () = assert!(OBJECTS <= 1 << (64 - ADDRESS_BITS));
