//! The instructions around a place in a function, for sampled addresses.

use dimmer_processor::class::InstructionClass;

use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::analysis::{Analyser, names_zmm};
use crate::{Code, Function, HotLoop, classify};

/// Instructions on either side of a place that count as near it: a wide instruction makes the
/// processor throttle code some 70 to 80 instructions around it.
///
/// Source: T. Downs, "Gathering Intel on Intel AVX-512 Transitions" (2020), measured on Skylake.
const NEAR: usize = 70;

/// The most demanding code near a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near {
    /// The most demanding class of the instructions.
    pub class: InstructionClass,
    /// Whether an instruction names a 512-bit register.
    pub uses_zmm: bool,
}

/// What is near each of these addresses of a function that lies at `start` in memory, as
/// [`Code::near`] says, and the most demanding code of all of it. For code that is in no file.
#[must_use]
pub fn near_in(code: &[u8], start: u64, addresses: &[u64]) -> (Near, Vec<Near>) {
    let analysis = Analyser::new(true).run(code, start, false);
    let class = analysis.instructions.heaviest().unwrap_or(InstructionClass::Scalar);
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let near = near(decoder.into_iter(), &analysis.loops, addresses);
    (Near { class, uses_zmm: analysis.zmm > 0 }, near)
}

impl Code<'_> {
    /// What is near each of these addresses of a function: the innermost loop with wide
    /// instructions that encloses the address, or else the 70 instructions before and after it, in
    /// the order of addresses. Scalar where nothing decodes.
    ///
    /// Decodes the function once.
    #[must_use]
    pub fn near(&self, function: &Function, addresses: &[u64]) -> Vec<Near> {
        near(self.within(&function.addresses), &function.loops, addresses)
    }

    /// The address of the byte at a file offset; `None` if there is no code there.
    #[must_use]
    pub fn address(&self, offset: u64) -> Option<u64> {
        self.sections.iter().find_map(|section| {
            let start = (section.bytes.as_ptr().addr() - self.file.as_ptr().addr()) as u64;
            let within = offset.checked_sub(start)?;
            (within < section.bytes.len() as u64).then(|| section.address + within)
        })
    }
}

fn near(
    instructions: impl Iterator<Item = Instruction>,
    loops: &[HotLoop],
    addresses: &[u64],
) -> Vec<Near> {
    let instructions: Vec<(u64, Near)> = instructions
        .map(|instruction| {
            let class = classify(&instruction).unwrap_or(InstructionClass::Scalar);
            let uses_zmm = class >= InstructionClass::Light256 && names_zmm(&instruction);
            (instruction.ip(), Near { class, uses_zmm })
        })
        .collect();
    let place = |address: u64| instructions.partition_point(|(at, _)| *at <= address);
    let around = |address: &u64| {
        let hot = loops.iter().filter(|hot| hot.addresses.contains(address));
        let hot = hot.min_by_key(|hot| hot.addresses.end - hot.addresses.start);
        let range = match hot {
            Some(hot) => place(hot.addresses.start).saturating_sub(1)..place(hot.addresses.end - 1),
            None => {
                let after = place(*address);
                after.saturating_sub(NEAR + 1)..(after + NEAR).min(instructions.len())
            }
        };
        let found = instructions.get(range).unwrap_or_default().iter();
        let scalar = Near { class: InstructionClass::Scalar, uses_zmm: false };
        found.fold(scalar, |most, (_, one)| Near {
            class: most.class.max(one.class),
            uses_zmm: most.uses_zmm || one.uses_zmm,
        })
    };
    addresses.iter().map(around).collect()
}
