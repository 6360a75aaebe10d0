//! Entries inside functions: hand-written assembly jumps from one function into the middle of
//! another, with live registers, and some functions are entered in no other way.
//!
//! A hook keeps all registers, so it may be put there as at a function's start, provided that the
//! return address is on top of the stack, flags do not matter, and nothing is kept below the stack
//! pointer. Execution must also come there from elsewhere, or the iterations of a loop would count
//! as calls.
//!
//! Where no hook can be, the functions that jump there are the next best place for one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use crate::Found;
use crate::analysis::{JUMP_BYTES, refers_below_stack};
use crate::classify::{self, Kind, Traits};
use crate::elf::Image;
use crate::frames::{self, Frame};
use crate::function::Entry;
use crate::hook::{STATUS_FLAGS, Unhookable};
use crate::seeds::References;

/// The flags that arithmetic sets. They fit in a byte.
const ALL_FLAGS: u8 = 0x3f;
const _: () = assert!(STATUS_FLAGS == ALL_FLAGS as u32);

/// What leads inside a function.
#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// The places, by address.
    pub(crate) entries: Vec<Entry>,
    /// The indices of the functions that jump to those without a hook, other than functions that
    /// this one jumps to.
    pub(crate) leaders: BTreeSet<usize>,
}

/// What leads inside functions with wide instructions, by the index in `found`, which is by
/// address.
///
/// Decodes those functions again. Takes time in proportion to their length, the number of entries,
/// and the number of jumps between functions (and sorts the last).
pub(crate) fn entries(
    image: &Image<'_>,
    frames: &[Frame],
    references: &References,
    found: &[Found],
) -> BTreeMap<usize, Inner> {
    let places = places(references, found);
    let address = |function: usize, offset: usize| {
        let found = &found[function];
        image.sections[found.section].address + (found.start + offset) as u64
    };
    let addresses: Vec<u64> =
        places.iter().map(|(function, offset)| address(*function, *offset)).collect();
    let mut inner = BTreeMap::new();
    if places.is_empty() {
        return inner;
    }
    let called = match image.frames {
        Some((section, bytes)) => frames::called_at(section, bytes, frames, &addresses),
        None => vec![false; places.len()],
    };
    let jumps = Jumps::new(image, found, &references.jumps);
    let exported = exported(image);
    let mut first = 0;
    for group in places.chunk_by(|one, next| one.0 == next.0) {
        let (function, called) = (group[0].0, &called[first..first + group.len()]);
        first += group.len();
        let own = &found[function];
        let begin = address(function, 0);
        let code = image.sections[own.section].bytes.get(own.start..own.end).unwrap_or_default();
        let led_to = |offset: usize| references.is_led_to(own.section, own.start + offset);
        let body = Body::read(code, begin);
        let spanned = body.spanned(group);
        // Then code before the entry never runs, unless the code after it leads back there.
        let sole = group.len() == 1
            && !led_to(0)
            && begin != image.entry
            && exported.binary_search(&begin).is_err();
        let entry = |(number, (_, offset)): (usize, &(usize, usize))| {
            let entered = |range: Range<usize>| {
                let range = own.start + range.start..own.start + range.end;
                let found = references.entered.next(own.section, range.start, range.end);
                found.map(|at| at - own.start)
            };
            let at = address(function, *offset);
            let offset = length(*offset);
            let from = if sole && !spanned[number] { offset } else { 0 };
            let hook = if !called[number] {
                Err(Unhookable::NotCalled)
            } else if jumps.come_back(function, from, at) {
                Err(ENTERED)
            } else {
                body.check(offset, sole, &entered, |length| relocated(image, at, length))
            };
            let is_called = references.is_called(own.section, own.start + offset as usize);
            Entry { offset, hook, is_called }
        };
        let entries: Vec<Entry> = group.iter().enumerate().map(entry).collect();
        let without = entries.iter().filter(|entry| entry.hook.is_err());
        let without = without.map(|entry| begin + u64::from(entry.offset));
        let leaders = without.flat_map(|at| jumps.leaders(function, at)).collect();
        inner.insert(function, Inner { entries, leaders });
    }
    inner
}

/// Code that must not lead to the entry does so.
const ENTERED: Unhookable = Unhookable::Entered { offset: 0 };

/// An offset within a section, as 32 bits: no section is longer.
fn length(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

/// Where other functions lead inside those with wide instructions: function and offset, ascending.
fn places(references: &References, found: &[Found]) -> Vec<(usize, usize)> {
    let mut places = Vec::new();
    for (function, own) in found.iter().enumerate() {
        if own.analysis.instructions.wide() == 0 {
            continue;
        }
        let mut from = own.start + 1;
        while let Some(at) = references.entered.next(own.section, from, own.end) {
            places.push((function, at - own.start));
            from = at + 1;
        }
    }
    places
}

/// Addresses that other files may call, sorted.
fn exported(image: &Image<'_>) -> Vec<u64> {
    let global = image.symbols.iter().filter(|symbol| !symbol.local);
    let mut addresses: Vec<u64> = global.map(|symbol| symbol.address).collect();
    addresses.sort_unstable();
    addresses
}

/// The first of `length` bytes that the dynamic linker writes to.
fn relocated(image: &Image<'_>, address: u64, length: u64) -> Option<u32> {
    let first = image.relocated.partition_point(|place| place.saturating_add(7) < address);
    let place = image.relocated.get(first).filter(|place| **place < address + length)?;
    u32::try_from(place.saturating_sub(address)).ok()
}

/// Direct jumps between functions.
struct Jumps {
    /// The targets, each with the function that jumps there.
    to: Vec<(u64, usize)>,
    /// For two functions, the largest offset in the first from which it jumps to the second.
    last: BTreeMap<(usize, usize), u32>,
}

impl Jumps {
    fn new(image: &Image<'_>, found: &[Found], jumps: &[(u64, u64)]) -> Self {
        let bounds: Vec<Range<u64>> = found
            .iter()
            .map(|found| {
                let address = image.sections[found.section].address;
                address + found.start as u64..address + found.end as u64
            })
            .collect();
        let function_at = |address: u64| {
            let after = bounds.partition_point(|range| range.start <= address);
            after.checked_sub(1).filter(|index| address < bounds[*index].end)
        };
        let (mut to, mut last) = (Vec::new(), BTreeMap::new());
        for (from, target) in jumps {
            let (Some(one), Some(other)) = (function_at(*from), function_at(*target)) else {
                continue;
            };
            if one == other {
                continue;
            }
            to.push((*target, one));
            let offset = u32::try_from(from - bounds[one].start).unwrap_or(u32::MAX);
            let known = last.entry((one, other)).or_insert(offset);
            *known = offset.max(*known);
        }
        to.sort_unstable();
        to.dedup();
        Self { to, last }
    }

    /// Whether `function` jumps, at offset `from` or after it, to a function that leads to
    /// `address`.
    fn come_back(&self, function: usize, from: u32, address: u64) -> bool {
        self.leading(address)
            .any(|other| self.last.get(&(function, other)).is_some_and(|last| *last >= from))
    }

    /// The functions that jump to `address` in `function`, other than those that it jumps to.
    fn leaders(&self, function: usize, address: u64) -> impl Iterator<Item = usize> + '_ {
        self.leading(address).filter(move |other| !self.last.contains_key(&(function, *other)))
    }

    /// The functions that jump to `address` in another one.
    fn leading(&self, address: u64) -> impl Iterator<Item = usize> + '_ {
        let first = self.to.partition_point(|(target, _)| *target < address);
        let leading = self.to[first..].iter().take_while(move |(target, _)| *target == address);
        leading.map(|(_, other)| *other)
    }
}

/// An instruction of a function.
struct Step {
    offset: u32,
    length: u8,
    kind: Kind,
    calls: bool,
    landing_pad: bool,
    /// Flags that it, or the code after it, may read before they are set.
    flags: u8,
    /// Flags whose earlier value no longer matters after it.
    sets: u8,
}

/// The instructions of a function, with what the check of entries needs.
struct Body {
    steps: Vec<Step>,
    /// Targets of direct jumps and calls inside it, sorted.
    targets: Vec<u32>,
    /// Backward jumps: target and source.
    backward: Vec<(u32, u32)>,
    /// The first instruction that refers to memory below the stack pointer.
    below_stack: Option<u32>,
}

impl Body {
    /// Decodes a function at `start`.
    fn read(code: &[u8], start: u64) -> Self {
        let traits = classify::table();
        let mut body = Self {
            steps: Vec::new(),
            targets: Vec::new(),
            backward: Vec::new(),
            below_stack: None,
        };
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let position = decoder.position();
            decoder.decode_out(&mut instruction);
            let traits = &traits[instruction.code() as usize];
            if traits.kind != Kind::Invalid {
                body.add(length(position), traits, &instruction, start, code.len());
            } else if decoder.set_position(position + 1).is_ok() {
                decoder.set_ip(start.wrapping_add(position as u64 + 1));
            } else {
                break;
            }
        }
        body.targets.sort_unstable();
        body.follow_flags();
        body
    }

    fn add(
        &mut self,
        offset: u32,
        traits: &Traits,
        instruction: &Instruction,
        start: u64,
        size: usize,
    ) {
        if refers_below_stack(instruction) {
            self.below_stack.get_or_insert(offset);
        }
        let target = instruction.near_branch_target().wrapping_sub(start);
        if instruction.op0_kind() == OpKind::NearBranch64 && target < size as u64 {
            let target = u32::try_from(target).unwrap_or(u32::MAX);
            self.targets.push(target);
            if target <= offset && traits.kind != Kind::Call {
                self.backward.push((target, offset));
            }
        }
        let (flags, sets) = flags_of(instruction);
        self.steps.push(Step {
            offset,
            length: u8::try_from(instruction.len()).unwrap_or_default(),
            kind: traits.kind,
            calls: matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            ),
            landing_pad: instruction.code() == Code::Endbr64,
            flags,
            sets,
        });
    }

    /// Adds to the flags that each instruction may read those that the code after it may read. Goes
    /// from the last to the first.
    fn follow_flags(&mut self) {
        let (mut next, mut flags) = (None, ALL_FLAGS);
        for step in self.steps.iter_mut().rev() {
            // After a gap, the next bytes are no instruction.
            let follows = next == Some(step.offset + u32::from(step.length));
            let after = if follows { flags } else { ALL_FLAGS };
            step.flags |= after & !step.sets;
            (next, flags) = (Some(step.offset), step.flags);
        }
    }

    /// For each place, whether a jump at or after it leads back to before it.
    fn spanned(&self, places: &[(usize, usize)]) -> Vec<bool> {
        let mut changes = vec![0_i64; places.len() + 1];
        let index = |offset: u32| places.partition_point(|(_, place)| *place <= offset as usize);
        for (to, from) in &self.backward {
            let (first, after) = (index(*to), index(*from));
            if first < after {
                changes[first] += 1;
                changes[after] -= 1;
            }
        }
        let mut depth = 0;
        let mut sum = |change: &i64| {
            depth += change;
            depth > 0
        };
        changes[..places.len()].iter().map(&mut sum).collect()
    }

    /// The number of bytes that a jump at `offset` displaces, or why there can be no jump.
    /// `entered` returns where other functions lead in a range, `relocated` the first byte there
    /// that the dynamic linker writes to.
    fn check(
        &self,
        offset: u32,
        sole: bool,
        entered: &impl Fn(Range<usize>) -> Option<usize>,
        relocated: impl FnOnce(u64) -> Option<u32>,
    ) -> Result<u8, Unhookable> {
        // `offset` must be the start of an instruction.
        let first =
            self.steps.binary_search_by_key(&offset, |step| step.offset).map_err(|_| ENTERED)?;
        let steps = &self.steps[first..];
        let (displaced, number) = displaced(steps)?;
        let end = offset + u32::from(displaced);
        let after = self.targets.partition_point(|target| *target < offset);
        let own = self.targets.get(after).filter(|target| **target < end);
        let others = entered(offset as usize + 1..end as usize).map(length);
        if let Some(at) = own.copied().into_iter().chain(others).min() {
            return Err(Unhookable::Entered { offset: at - offset });
        }
        if !sole && self.falls_into(first) {
            return Err(ENTERED);
        }
        if let Some(offset) = relocated(u64::from(displaced)) {
            return Err(Unhookable::Relocated { offset });
        }
        if let Some(call) = steps[..number].iter().find(|step| step.calls) {
            return Err(Unhookable::Calls { offset: call.offset - offset });
        }
        if let Some(offset) = self.below_stack {
            return Err(Unhookable::BelowStack { offset });
        }
        if steps[0].flags != 0 {
            return Err(Unhookable::TakesFlags);
        }
        Ok(displaced)
    }

    /// Whether execution goes on from the instructions before to the one with this index.
    fn falls_into(&self, index: usize) -> bool {
        let before = self.steps[..index].iter().rev().find(|step| step.kind != Kind::Padding);
        before.is_some_and(|step| {
            !matches!(step.kind, Kind::Jump | Kind::IndirectJump | Kind::Return | Kind::Stop)
        })
    }
}

/// The number of bytes and instructions that a jump over the start of `steps` displaces.
fn displaced(steps: &[Step]) -> Result<(u8, usize), Unhookable> {
    let pad = steps.first().filter(|step| step.landing_pad).map_or(0, |step| step.length);
    let wanted = JUMP_BYTES + u32::from(pad);
    let mut bytes = 0;
    let start = steps.first().map_or(0, |step| step.offset);
    for (number, step) in steps.iter().enumerate() {
        if step.offset != start + bytes {
            break;
        }
        bytes += u32::from(step.length);
        if bytes >= wanted {
            return Ok((u8::try_from(bytes).unwrap_or(u8::MAX), number + 1));
        }
    }
    Err(Unhookable::TooShort { bytes: bytes - u32::from(pad) })
}

/// The flags that an instruction reads, or, if it leads elsewhere, that code there may read before
/// they are set; and the flags whose earlier value no longer matters after it.
fn flags_of(instruction: &Instruction) -> (u8, u8) {
    let byte = |flags: u32| u8::try_from(flags & STATUS_FLAGS).unwrap_or(ALL_FLAGS);
    let (read, modified) = (byte(instruction.rflags_read()), byte(instruction.rflags_modified()));
    match instruction.flow_control() {
        FlowControl::Next => (read, modified),
        // Calls pass no flags, neither to the function nor back.
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::Return => (read, ALL_FLAGS),
        _ => (ALL_FLAGS, ALL_FLAGS),
    }
}
