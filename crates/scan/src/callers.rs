//! The callers of each function within a file, and the outermost functions around others.

use std::collections::{BTreeMap, BTreeSet};

use std::ops::Range;

use iced_x86::{Code as Operation, Decoder, DecoderOptions, Instruction, OpKind};

use crate::elf::{self, Section};
use crate::error::ScanError;
use crate::{Code, Function, Scan};

/// The most levels to go up from caller to caller.
const MOST_LEVELS: usize = 4;

/// Direct calls and jumps between the functions of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers {
    /// By the function's start: the starts of the functions that call it, or jump there.
    callers: BTreeMap<u64, BTreeSet<u64>>,
    /// Functions that may have further callers: those that other files can name, and those whose
    /// address is taken.
    reached: BTreeSet<u64>,
    /// The start of the program, and `main`, which it passes to the C library.
    first: BTreeSet<u64>,
}

impl Callers {
    /// Reads the file `bytes` again, from which `scan` came. Takes about as long as the scan.
    ///
    /// # Errors
    /// As [`crate::scan`].
    pub fn read(bytes: &[u8], scan: &Scan) -> Result<Self, ScanError> {
        let image = elf::read(bytes)?;
        let code = Code::read(bytes)?;
        let begin = |address: u64| scan.at(address).map(|function| function.addresses.start);
        let mut found = Self::default();
        let exported = image.symbols.iter().filter(|symbol| !symbol.local);
        let named = exported.map(|symbol| symbol.address).chain(image.pointers.iter().copied());
        found.reached.extend(named.filter_map(begin));
        let entry = begin(image.entry);
        found.first.extend(entry);
        let mut instruction = Instruction::default();
        for function in &scan.functions {
            let own = &function.addresses;
            let length = usize::try_from(own.end - own.start).unwrap_or(usize::MAX);
            let bytes = code.at(own.start).unwrap_or_default();
            let bytes = &bytes[..length.min(bytes.len())];
            let mut decoder = Decoder::with_ip(64, bytes, own.start, DecoderOptions::NONE);
            while decoder.can_decode() {
                decoder.decode_out(&mut instruction);
                if instruction.op0_kind() == OpKind::NearBranch64 {
                    let target = instruction.near_branch_target();
                    if !own.contains(&target)
                        && let Some(callee) = begin(target)
                    {
                        found.callers.entry(callee).or_default().insert(own.start);
                    }
                } else if instruction.code() == Operation::Lea_r64_m
                    && instruction.is_ip_rel_memory_operand()
                    && let Some(taken) = begin(instruction.ip_rel_memory_address())
                {
                    found.reached.insert(taken);
                    if entry == Some(own.start) {
                        found.first.insert(taken);
                    }
                }
            }
        }
        Ok(found)
    }

    /// The outermost functions around `function` that others reach by a standard call, and whose
    /// entries can be hooked: calls of these contain all calls of `function`. The result for a
    /// function is the function itself if it may have further callers, or if one of its callers
    /// cannot be hooked, or is the program's start or `main`.
    #[must_use]
    pub fn outermost<'scan>(
        &self,
        function: &'scan Function,
        scan: &'scan Scan,
    ) -> Vec<&'scan Function> {
        let mut inner = vec![function];
        let mut outermost: BTreeMap<u64, &Function> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for level in 0..=MOST_LEVELS {
            let mut outer = Vec::new();
            for function in std::mem::take(&mut inner) {
                let start = function.addresses.start;
                if !seen.insert(start) {
                    continue;
                }
                match self.outer(start, scan).filter(|_| level < MOST_LEVELS) {
                    Some(callers) => outer.extend(callers),
                    None => drop(outermost.insert(start, function)),
                }
            }
            inner = outer;
        }
        outermost.into_values().collect()
    }

    /// The callers of a function; `None` if it may have others, or if one of them cannot be hooked.
    fn outer<'scan>(&self, start: u64, scan: &'scan Scan) -> Option<Vec<&'scan Function>> {
        if self.reached.contains(&start) {
            return None;
        }
        let callers = self.callers.get(&start)?.iter();
        let functions: Option<Vec<&Function>> = callers.map(|caller| scan.at(*caller)).collect();
        let can_be = |function: &&Function| {
            function.hook.is_ok()
                && !self.first.contains(&function.addresses.start)
                && function.name.as_deref() != Some("main")
        };
        functions.filter(|functions| functions.iter().all(can_be))
    }
}

/// The functions that lead into one of those that start at `targets`, by direct calls and jumps,
/// through any functions between. Maps the start of each to the start of the function that it calls
/// on the way. Decodes all of `functions`, which are disjoint.
pub(crate) fn leading_to(
    sections: &[Section<'_>],
    functions: impl Iterator<Item = Range<u64>>,
    targets: BTreeSet<u64>,
) -> BTreeMap<u64, u64> {
    let ends: BTreeMap<u64, u64> =
        functions.map(|function| (function.start, function.end)).collect();
    let mut callers: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let mut instruction = Instruction::default();
    for (&start, &end) in &ends {
        let section = elf::find(sections, start).map(|section| &sections[section]);
        let bytes = section.and_then(|section| section.bytes.get(section.offset(start)?..));
        let length = usize::try_from(end - start).unwrap_or(usize::MAX);
        let bytes = bytes.and_then(|bytes| bytes.get(..length)).unwrap_or_default();
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.op0_kind() != OpKind::NearBranch64 {
                continue;
            }
            let target = instruction.near_branch_target();
            if let Some((&callee, &end)) = ends.range(..=target).next_back()
                && target < end
                && callee != start
            {
                callers.entry(callee).or_default().insert(start);
            }
        }
    }
    let mut leading = BTreeMap::new();
    let mut pending: Vec<u64> = targets.iter().copied().collect();
    while let Some(callee) = pending.pop() {
        for caller in callers.remove(&callee).unwrap_or_default() {
            if !targets.contains(&caller) && !leading.contains_key(&caller) {
                leading.insert(caller, callee);
                pending.push(caller);
            }
        }
    }
    leading
}
