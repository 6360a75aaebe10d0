//! Whether a file may hold functions with instructions of some classes at all: most files hold none, and to say so takes a fraction of
//! what a scan takes.
//!
//! All instructions on more than 128 bits, and those on tiles, have a VEX, EVEX or XOP prefix. Wherever its first byte stands,
//! what would be executed from there is decoded. Where that is of the classes, it may be a part of another instruction: in
//! a function that symbols or frames describe, decoding it from its begin decides, as in a scan; elsewhere only a scan can.

use std::collections::BTreeSet;

use dimmer_processor::class::InstructionClass;
use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::analysis::Analyser;
use crate::classify;
use crate::elf::{self, Section};
use crate::error::ScanError;
use crate::frames;
use crate::starts::{self, Known};

/// Whether [`crate::scan`] may find a function with instructions of one of these classes in the ELF file `bytes`: if not, it
/// finds none.
///
/// # Errors
/// As [`crate::scan`].
pub fn may_hold(bytes: &[u8], classes: &BTreeSet<InstructionClass>) -> Result<bool, ScanError> {
    if classes.iter().any(|class| *class < InstructionClass::Light256) {
        return Ok(true);
    }
    let image = elf::read(bytes)?;
    let mut frames = match image.frames {
        Some((address, bytes)) => frames::frames(address, bytes)?,
        None => Vec::new(),
    };
    frames.sort_unstable_by_key(|frame| frame.start);
    let known = starts::known(&image, &frames);
    let mut analyser = Analyser::new();
    for (index, section) in image.sections.iter().enumerate() {
        let mut at = 0;
        while let Some(candidate) = next(section, at, classes) {
            let Some(range) = around(&known, index, candidate) else { return Ok(true) };
            let code = section.bytes.get(range.start..range.end).unwrap_or_default();
            let found = analyser.run(code, section.address + range.start as u64, false);
            if classes.iter().any(|class| found.instructions.of(*class) > 0) {
                return Ok(true);
            }
            at = range.end.max(candidate + 1);
        }
    }
    Ok(false)
}

/// The first place from `at` on where an instruction of these classes would be executed.
fn next(section: &Section<'_>, at: usize, classes: &BTreeSet<InstructionClass>) -> Option<usize> {
    let traits = classify::table();
    let mut instruction = Instruction::default();
    (at..section.bytes.len()).find(|at| {
        let bytes = section.bytes.get(*at..).unwrap_or_default();
        if !may_begin(bytes) {
            return false;
        }
        Decoder::new(64, bytes, DecoderOptions::NONE).decode_out(&mut instruction);
        traits[instruction.code() as usize].class.is_some_and(|class| classes.contains(&class))
    })
}

/// Whether the bytes may begin an instruction on more than 128 bits or on tiles: by the prefix, and its bit for the width.
///
/// Source: Intel, Software Developer's Manual, volume 2, §2.3 and §2.7; AMD, Architecture Programmer's Manual, volume 6, §1.2.
fn may_begin(bytes: &[u8]) -> bool {
    const WIDTH: u8 = 1 << 2;
    match *bytes {
        [0xc5, second, ..] => second & WIDTH != 0,
        // Instructions on tiles are in the second and fifth table, and have no width.
        [0xc4, second, third, ..] => third & WIDTH != 0 || matches!(second & 0x1f, 2 | 5),
        [0x8f, second, third, ..] => second & 0x1f >= 8 && third & WIDTH != 0,
        // The bit is always set there; the width is in the fourth byte.
        [0x62, _, third, ..] => third & WIDTH != 0,
        _ => false,
    }
}

/// The function that symbols or frames describe around an offset of a section.
fn around(known: &[Known], section: usize, offset: usize) -> Option<&Known> {
    let after = known.partition_point(|range| (range.section, range.start) <= (section, offset));
    let range = known.get(after.checked_sub(1)?)?;
    (range.section == section && offset < range.end).then_some(range)
}
