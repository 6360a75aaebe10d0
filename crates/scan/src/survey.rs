//! Selects which of the functions that symbols and frames describe are decoded.
//!
//! A scan decodes all of them. A search for wide functions alone can skip most of a file. The
//! findings about a wide function depend on its own code, on code that nothing describes, and on
//! code that leads to either. All of that shows in byte patterns, which are searched for at every
//! offset. This finds too many places, never too few, and a function that is decoded in vain
//! changes nothing.
//!
//! - Instructions on more than 128 bits, and those on tiles, have a VEX, EVEX or XOP prefix.
//! - Direct calls and jumps, and `lea` of a code address, have an opcode and a distance.
//! - Code that changes stacks loads the stack pointer.

use std::collections::BTreeSet;
use std::ops::Range;

use dimmer_processor::class::InstructionClass;
use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::Found;
use crate::analysis::Analyser;
use crate::balance;
use crate::classify;
use crate::elf::{self, Image, Section};
use crate::frames::Frame;
use crate::seeds::{Gap, References};
use crate::starts::Known;

/// The decoded functions of a file, collected step by step.
pub(crate) struct Survey<'file> {
    pub(crate) image: &'file Image<'file>,
    pub(crate) frames: &'file [Frame],
    pub(crate) known: &'file [Known],
    /// For each of `known`, whether it was decoded.
    is_read: Vec<bool>,
    /// The decoded functions, in any order.
    pub(crate) found: Vec<Found>,
    /// What the decoded functions refer to.
    pub(crate) references: References,
    pub(crate) analyser: Analyser,
}

impl<'file> Survey<'file> {
    /// Starts with none of the `known` functions decoded. They are sorted by address.
    pub(crate) fn new(
        image: &'file Image<'file>,
        frames: &'file [Frame],
        known: &'file [Known],
        analyser: Analyser,
    ) -> Self {
        Self {
            image,
            frames,
            known,
            is_read: vec![false; known.len()],
            found: Vec::with_capacity(known.len()),
            references: References::new(image),
            analyser,
        }
    }

    /// Decodes all functions.
    pub(crate) fn read_all(&mut self) {
        (0..self.known.len()).for_each(|number| self.read(number));
    }

    /// Decodes the functions with wide instructions, and those that matter for them or for the code
    /// in `gaps`. Returns whether there can be a function with instructions of one of `classes`,
    /// which are wide. If not, the decoded functions are of no use.
    pub(crate) fn read_wide(&mut self, gaps: &[Gap], classes: &BTreeSet<InstructionClass>) -> bool {
        let sections = &self.image.sections;
        let mut is_asked = false;
        for (index, section) in sections.iter().enumerate() {
            let mut at = 0;
            while let Some(candidate) = next_wide(section, at) {
                let after = self.known_before(index, candidate + 1);
                at = match self.around(index, candidate) {
                    Some(number) => {
                        self.read(number);
                        self.known[number].end
                    }
                    // Code that nothing describes is decoded as a whole.
                    None => {
                        is_asked = true;
                        let next = self.known.get(after).filter(|next| next.section == index);
                        next.map_or(section.bytes.len(), |next| next.start)
                    }
                };
            }
        }
        let holds =
            |found: &Found| classes.iter().any(|class| found.analysis.instructions.of(*class) > 0);
        is_asked |= self.found.iter().any(holds);
        if is_asked {
            self.read_around(gaps);
        }
        is_asked
    }

    /// Decodes the functions that lead to wide functions (decoded before) or to the code in `gaps`,
    /// and those that may change stacks.
    fn read_around(&mut self, gaps: &[Gap]) {
        let sections = &self.image.sections;
        let mut asked = Blocks::new(sections);
        for found in self.found.iter().filter(|found| found.analysis.instructions.wide() > 0) {
            asked.add(found.section, found.start, found.end);
        }
        for gap in gaps {
            let bytes = sections[gap.section].bytes.get(gap.start..gap.end).unwrap_or_default();
            if !is_padding(bytes) {
                asked.add(gap.section, gap.start, gap.end);
            }
        }
        for number in 0..self.known.len() {
            let Known { section, start, end, .. } = self.known[number];
            if !self.is_read[number] && leads_to(sections, section, start..end, &asked) {
                self.read(number);
            }
        }
    }

    /// Decodes the function with this index in `known`, once.
    fn read(&mut self, number: usize) {
        if std::mem::replace(&mut self.is_read[number], true) {
            return;
        }
        let Known { section, start, end, origin } = self.known[number];
        let sections = &self.image.sections;
        let Some(bytes) = sections[section].bytes.get(start..end) else { return };
        let address = sections[section].address + start as u64;
        let analysis = self.analyser.run(bytes, address, false);
        let is_compiled = crate::frame_at(self.frames, address).is_some();
        self.references.add(sections, &self.analyser.references, &analysis, is_compiled);
        self.found.push(Found { section, start, end, origin, analysis });
    }

    /// The number of known functions that start before an offset of a section, or in earlier
    /// sections.
    fn known_before(&self, section: usize, offset: usize) -> usize {
        self.known.partition_point(|range| (range.section, range.start) < (section, offset))
    }

    /// The index of the known function around an offset of a section.
    fn around(&self, section: usize, offset: usize) -> Option<usize> {
        let number = self.known_before(section, offset + 1).checked_sub(1)?;
        let range = &self.known[number];
        (range.section == section && offset < range.end).then_some(number)
    }
}

/// The first place at or after `at` that decodes as a wide instruction, even inside another one.
fn next_wide(section: &Section<'_>, at: usize) -> Option<usize> {
    let traits = classify::table();
    let mut instruction = Instruction::default();
    let bytes = section.bytes.get(at..).unwrap_or_default();
    let found = find(bytes, may_be_wide, |at| {
        Decoder::new(64, &bytes[at..], DecoderOptions::NONE).decode_out(&mut instruction);
        let class = traits[instruction.code() as usize].class;
        class.is_some_and(|class| class >= InstructionClass::Light256)
    });
    found.map(|found| at + found)
}

/// Whether an instruction at any offset of this range of a section would lead outside the range, to
/// code that is asked for, or may change stacks.
fn leads_to(sections: &[Section<'_>], section: usize, range: Range<usize>, asked: &Blocks) -> bool {
    let bytes = sections[section].bytes.get(range.clone()).unwrap_or_default();
    let found = find(
        bytes,
        |bytes| may_lead(bytes) | may_load_stack_pointer(bytes),
        |at| {
            let from = &bytes[at..];
            let Some(distance) = distance(from) else {
                let instruction = Decoder::new(64, from, DecoderOptions::NONE).decode();
                return balance::may_change_stacks(&instruction);
            };
            let target = (range.start + at).wrapping_add_signed(distance);
            !range.contains(&target) && asked.has(sections, section, target)
        },
    );
    found.is_some()
}

/// The first place where `check` returns true, among those whose first three bytes pass `test`. The
/// test runs without branches, so that compilers vectorize it. Bytes past the end count as zero.
fn find(
    bytes: &[u8],
    test: impl Fn([u8; 3]) -> bool,
    mut check: impl FnMut(usize) -> bool,
) -> Option<usize> {
    const PLACES: usize = 32;
    let mut at = 0;
    while let Some(block) = bytes.get(at..at + PLACES + 2) {
        let mut hits = [0_u8; PLACES];
        for (place, hit) in hits.iter_mut().enumerate() {
            *hit = u8::from(test([block[place], block[place + 1], block[place + 2]]));
        }
        let (words, _) = hits.as_chunks::<8>();
        for (number, word) in words.iter().enumerate() {
            let mut word = u64::from_le_bytes(*word);
            while word != 0 {
                let place = at + 8 * number + word.trailing_zeros() as usize / 8;
                if check(place) {
                    return Some(place);
                }
                word &= word - 1;
            }
        }
        at += PLACES;
    }
    let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
    (at..bytes.len()).find(|at| test([byte(*at), byte(at + 1), byte(at + 2)]) && check(*at))
}

/// Whether the bytes may start an instruction on more than 128 bits or on tiles, by the prefix and
/// its width bit.
///
/// Source: Intel, Software Developer's Manual, volume 2, §2.3 and §2.7; AMD, Architecture
/// Programmer's Manual, volume 6, §1.2.
fn may_be_wide([first, second, third]: [u8; 3]) -> bool {
    const WIDTH: u8 = 1 << 2;
    let table = second & 0x1f;
    let is_wide = third & WIDTH != 0;
    // Instructions on tiles are in the second and fifth table, and have no width bit.
    (first == 0xc5) & (second & WIDTH != 0)
        | (first == 0xc4) & (is_wide | (table == 2) | (table == 5))
        | (first == 0x8f) & (table >= 8) & is_wide
        // EVEX always has that bit set; its width is in the fourth byte.
        | (first == 0x62) & is_wide
}

/// Whether the bytes may start an instruction that [`distance`] handles.
fn may_lead([first, second, _]: [u8; 3]) -> bool {
    (first & 0xf0 == 0x70)
        | (first & 0xfc == 0xe0)
        | (first == 0xeb)
        | (first & 0xfe == 0xe8)
        | (first == 0x0f) & (second & 0xf0 == 0x80)
        | (first == 0x8d) & (second & 0xc7 == 0x05)
}

/// The distance from these bytes to the target, if they start with the opcode of a direct call or
/// jump, or of a `lea` relative to the instruction.
fn distance(bytes: &[u8]) -> Option<isize> {
    let far = |length: isize, distance: [u8; 4]| {
        isize::try_from(i32::from_le_bytes(distance)).map(|distance| length + distance).ok()
    };
    match *bytes {
        // `jo` to `jg`, `loopne` to `jrcxz`, `jmp`.
        [0x70..=0x7f | 0xe0..=0xe3 | 0xeb, near, ..] => Some(2 + isize::from(near.cast_signed())),
        // `call`, `jmp`.
        [0xe8 | 0xe9, a, b, c, d, ..] => far(5, [a, b, c, d]),
        [0x0f, 0x80..=0x8f, a, b, c, d, ..] => far(6, [a, b, c, d]),
        [0x8d, operand, a, b, c, d, ..] if operand & 0xc7 == 0x05 => far(6, [a, b, c, d]),
        _ => None,
    }
}

/// Whether the bytes may start an instruction that [`balance::may_change_stacks`] detects: one on
/// 64 bits that names the stack pointer as its first operand, or as one of two that are exchanged.
fn may_load_stack_pointer([prefix, opcode, operands]: [u8; 3]) -> bool {
    let is_middle = (prefix & 4 == 0) & (operands & 0x38 == 0x20);
    let is_last = (prefix & 1 == 0) & (operands & 0xc7 == 0xc4);
    let exchanges = opcode == 0x87;
    (prefix & 0xf8 == 0x48)
        & ((opcode == 0x8b) & is_middle
            | (opcode == 0x03) & is_middle
            | (opcode == 0x01) & is_last
            | exchanges & (is_middle | is_last)
            | (opcode == 0x94) & (prefix & 1 == 0))
}

/// Whether code in these bytes cannot be a function, wherever it starts: they only fill space
/// between functions. No instruction made of them leads elsewhere.
fn is_padding(bytes: &[u8]) -> bool {
    let fills = |byte: &u8| {
        matches!(byte, 0x00 | 0x0f | 0x1f | 0x2e | 0x40 | 0x44 | 0x66 | 0x80 | 0x84 | 0x90 | 0xcc)
    };
    bytes.iter().all(fills) && !bytes.windows(2).any(|pair| matches!(pair, [0x0f, 0x80 | 0x84]))
}

/// Bytes of a block. A guess: functions start at multiples of 16 bytes, and are a few times as
/// long.
const BLOCK: usize = 64;

/// The blocks of code with a part that is asked for.
struct Blocks {
    /// For each section, one flag per block.
    is_asked: Vec<Vec<bool>>,
}

impl Blocks {
    fn new(sections: &[Section<'_>]) -> Self {
        let blocks = |section: &Section<'_>| vec![false; section.bytes.len().div_ceil(BLOCK)];
        Self { is_asked: sections.iter().map(blocks).collect() }
    }

    fn add(&mut self, section: usize, start: usize, end: usize) {
        if let Some(blocks) = self.is_asked[section].get_mut(start / BLOCK..end.div_ceil(BLOCK)) {
            blocks.fill(true);
        }
    }

    /// Whether the block at an offset of a section is marked. The offset may lie outside the
    /// section, in another one.
    fn has(&self, sections: &[Section<'_>], section: usize, offset: usize) -> bool {
        if let Some(is_asked) = self.is_asked[section].get(offset / BLOCK) {
            return *is_asked;
        }
        let address = sections[section].address.wrapping_add(offset as u64);
        // With an address-size prefix, the upper half is cut off.
        [address, address & 0xffff_ffff].into_iter().any(|address| {
            elf::find(sections, address).is_some_and(|section| {
                let offset = sections[section].offset(address);
                offset.is_some_and(|offset| self.is_asked[section][offset / BLOCK])
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_what_compilers_and_assemblers_put_between_functions() {
        let long = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x44, 0, 0];
        assert!(is_padding(&long) && is_padding(&[0xcc; 9]) && is_padding(&[0x66, 0x90]));
        assert!(!is_padding(&[0x90, 0xc3]));
        // `je` with a 32-bit distance.
        assert!(!is_padding(&[0x0f, 0x84, 0, 0, 0, 0]));
    }

    #[test]
    fn targets_are_those_that_the_decoder_tells() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut seen = 0;
        for _ in 0..200_000 {
            let mut bytes = [0; 18];
            random.fill(&mut bytes);
            let instruction =
                Decoder::with_ip(64, &bytes, 0x10_0000, DecoderOptions::NONE).decode();
            let traits = &classify::table()[instruction.code() as usize];
            let told = match traits.kind {
                classify::Kind::Jump | classify::Kind::Branch | classify::Kind::Call => {
                    instruction.near_branch_target()
                }
                classify::Kind::Address if instruction.is_ip_rel_memory_operand() => {
                    instruction.ip_rel_memory_address()
                }
                _ => continue,
            };
            seen += 1;
            let begins = (0..instruction.len())
                .filter(|at| may_lead([bytes[*at], bytes[at + 1], bytes[at + 2]]));
            let found = begins
                .filter_map(|at| {
                    Some((0x10_0000 + at).wrapping_add_signed(distance(&bytes[at..])?))
                })
                .any(|found| [found as u64, found as u64 & 0xffff_ffff].contains(&told));
            assert!(found, "{:?} of {bytes:x?}", instruction.code());
        }
        assert!(seen > 10_000, "{seen}");
    }
}
