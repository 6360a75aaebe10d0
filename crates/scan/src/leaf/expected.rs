//! What the callers of a function rely on afterwards, besides what the calling convention promises:
//! hand-written assembly returns results in any register, and compilers that know both sides may do
//! so as well.
//!
//! After each direct call of the function in its file, this finds the registers that are read
//! before they are written, through returns, jumps and further calls. Calls through pointers, from
//! other files, and of functions that others may call as well are assumed to be standard: after
//! them, code relies on registers only as the convention promises. But results may be passed on to
//! them as arguments, as in `sin(f(x))`.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Code as Operation, InstructionInfoFactory};

use crate::elf::Image;
use crate::leaf::graph::{Called, Exit, Graph, Step, exit};
use crate::leaf::registers::{Registers, Uses};
use crate::{Code, Scan};

/// How a function is reached from within its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// By a call that returns to `after`.
    Call { after: u64 },
    /// By a jump from the function that starts at `from`, or because that function's end falls
    /// through.
    Jump { from: u64 },
}

/// What is read before it is written, from some place on.
#[derive(Clone, Debug, Default)]
struct Ahead {
    reads: Registers,
    /// Called functions, with what is written before the call.
    calls: Vec<(u64, Registers)>,
    /// What is written on every path to a return; `None` if no path returns.
    returns: Option<Registers>,
}

impl Ahead {
    fn leave(&mut self, defined: Registers) {
        self.returns = Some(self.returns.map_or(defined, |known| known & defined));
    }
}

/// The places already followed, with what is written before them on all paths.
#[derive(Debug, Default)]
struct Seen(BTreeMap<u64, Registers>);

impl Seen {
    /// Adds a path to a place. Returns what is written on all paths there, if that is less than
    /// before.
    fn add(&mut self, place: u64, defined: Registers) -> Option<Registers> {
        let known = self.0.get(&place).copied();
        let both = known.map_or(defined, |known| known & defined);
        (self.0.insert(place, both) != Some(both)).then_some(both)
    }
}

/// The calls and jumps within a file, by target.
#[derive(Debug)]
pub(crate) struct Expected<'data, 'scan> {
    code: &'scan Code<'data>,
    scan: &'scan Scan,
    /// By target address.
    sites: BTreeMap<u64, Vec<Site>>,
    /// Addresses that may have further callers: those that other files can name, and those that
    /// code takes.
    reached: BTreeSet<u64>,
    /// What is known of called functions.
    ahead: BTreeMap<u64, Ahead>,
}

impl<'data, 'scan> Expected<'data, 'scan> {
    /// Reads all functions of a file.
    pub(crate) fn read(image: &Image<'_>, code: &'scan Code<'data>, scan: &'scan Scan) -> Self {
        let exported = image.symbols.iter().filter(|symbol| !symbol.local);
        let reached = exported.map(|symbol| symbol.address).chain(image.pointers.iter().copied());
        let (sites, ahead) = (BTreeMap::new(), BTreeMap::new());
        let mut found = Self { code, scan, sites, reached: reached.collect(), ahead };
        for function in &scan.functions {
            let own = &function.addresses;
            let mut last = None;
            for instruction in code.within(own) {
                if instruction.code() == Operation::Lea_r64_m
                    && instruction.is_ip_rel_memory_operand()
                {
                    found.reached.insert(instruction.ip_rel_memory_address());
                }
                let exit = exit(&instruction);
                let (target, site) = match exit {
                    Exit::Call(Called::At(target)) => {
                        (target, Site::Call { after: instruction.next_ip() })
                    }
                    Exit::Jump(target) | Exit::Branch(target) if !own.contains(&target) => {
                        (target, Site::Jump { from: own.start })
                    }
                    _ => {
                        last = Some(exit);
                        continue;
                    }
                };
                last = Some(exit);
                found.sites.entry(target).or_default().push(site);
            }
            if matches!(last, Some(Exit::Next | Exit::Branch(_))) {
                let site = Site::Jump { from: own.start };
                found.sites.entry(own.end).or_default().push(site);
            }
        }
        found
    }

    /// What callers of the code at `entry` may read afterwards; `None` if nothing is known to lead
    /// there.
    pub(crate) fn after(&mut self, entry: u64) -> Option<Registers> {
        let is_reached = self.reached.contains(&entry);
        if !is_reached && !self.sites.contains_key(&entry) {
            return None;
        }
        let mut result = if is_reached { Registers::RETURNED } else { Registers::NONE };
        // Functions that return to the callers of the entry.
        let mut seen = Seen::default();
        let sites = self.sites.get(&entry).into_iter().flatten();
        let mut pending: Vec<(Site, Registers)> =
            sites.map(|site| (*site, Registers::NONE)).collect();
        while let Some((site, defined)) = pending.pop() {
            let (owner, defined) = match site {
                Site::Jump { from } => (from, defined),
                Site::Call { after } => {
                    let ahead = self.ahead(after);
                    result |= self.reads(&ahead).without(defined);
                    let Some(returns) = ahead.returns else { continue };
                    (after.wrapping_sub(1), defined | returns)
                }
            };
            let Some(function) = self.scan.at(owner) else { return Some(Registers::ALL) };
            let own = &function.addresses;
            let Some(defined) = seen.add(own.start, defined) else { continue };
            if self.reached.range(own.clone()).next().is_some() {
                result |= Registers::RETURNED.without(defined);
            }
            let sites = self.sites.range(own.clone()).flat_map(|(_, sites)| sites);
            pending.extend(sites.map(|site| (*site, defined)));
        }
        Some(result)
    }

    /// What is read from some place on, including by called functions.
    fn reads(&mut self, ahead: &Ahead) -> Registers {
        let mut result = ahead.reads;
        let mut seen = Seen::default();
        let mut pending = ahead.calls.clone();
        while let Some((callee, defined)) = pending.pop() {
            let Some(defined) = seen.add(callee, defined) else { continue };
            if !self.ahead.contains_key(&callee) {
                let ahead = self.ahead(callee);
                self.ahead.insert(callee, ahead);
            }
            let ahead = &self.ahead[&callee];
            result |= ahead.reads.without(defined);
            let calls = ahead.calls.iter();
            pending.extend(calls.map(|(callee, before)| (*callee, *before | defined)));
        }
        result
    }

    /// What is read from some place on, except by called functions.
    fn ahead(&self, start: u64) -> Ahead {
        let returns = Some(Registers::NONE);
        let everything = Ahead { reads: Registers::ALL, calls: Vec::new(), returns };
        let Ok(graph) = Graph::explore(self.code, start) else { return everything };
        let mut factory = InstructionInfoFactory::new();
        let mut ahead = Ahead::default();
        let mut before = BTreeMap::from([(start, Registers::NONE)]);
        let mut pending = vec![start];
        while let Some(leader) = pending.pop() {
            let mut defined = before[&leader];
            let mut lead = |target: u64, defined: Registers| {
                let known = before.get(&target).copied();
                let both = known.map_or(defined, |known| known & defined);
                if known != Some(both) {
                    before.insert(target, both);
                    pending.push(target);
                }
            };
            for (address, step) in graph.steps.range(leader..) {
                if *address != leader && graph.leaders.contains(address) {
                    lead(*address, defined);
                    break;
                }
                let uses = uses(&mut factory, step);
                ahead.reads |= uses.reads.without(defined);
                defined |= uses.defines;
                match step.exit {
                    Exit::Next => {}
                    Exit::Call(called) => defined |= self.call(called, defined, &mut ahead),
                    Exit::Branch(target) => lead(target, defined),
                    Exit::Jump(target) => {
                        lead(target, defined);
                        break;
                    }
                    Exit::Return => {
                        ahead.leave(defined);
                        break;
                    }
                    // A function of another file returns something of its own.
                    Exit::Linked => {
                        ahead.reads |= Registers::RETURNED.without(defined);
                        break;
                    }
                    Exit::Unknown => {
                        ahead.leave(defined);
                        ahead.reads |= !defined;
                        break;
                    }
                    Exit::Stop => break,
                }
            }
        }
        ahead
    }

    /// Follows a call. Returns the registers that no longer hold what they held before it.
    fn call(&self, called: Called, defined: Registers, ahead: &mut Ahead) -> Registers {
        if let Called::At(callee) = called
            && !self.reached.contains(&callee)
            && !self.is_linked(callee)
        {
            ahead.calls.push((callee, defined));
            return Registers::NONE;
        }
        ahead.reads |= Registers::RETURNED.without(defined);
        !Registers::PRESERVED
    }

    /// Whether the code there jumps through the linkage table, to a function of another file.
    fn is_linked(&self, address: u64) -> bool {
        let bytes = self.code.at(address).unwrap_or_default();
        let instructions = iced_x86::Decoder::with_ip(64, bytes, address, 0).into_iter();
        // A landing pad may come first.
        instructions.take(2).any(|instruction| exit(&instruction) == Exit::Linked)
    }
}

fn uses(factory: &mut InstructionInfoFactory, step: &Step) -> Uses {
    let info = factory.info(&step.instruction);
    Uses::of(&step.instruction, info)
}
