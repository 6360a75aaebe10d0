//! What the callers of a function count on afterwards, beside what the calling convention promises:
//! hand-written assembly hands results over in any register, and compilers that know both sides may
//! as well.
//!
//! Behind each direct call of the function in its file it is looked which registers are read before
//! they are written, through returns, jumps and further calls. Calls through pointers, of other
//! files and of functions that others may call as well are taken to be standard ones: nobody counts
//! on what registers hold behind them but by the convention.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Code as Operation, InstructionInfoFactory};

use crate::elf::Image;
use crate::leaf::graph::{Called, Exit, Graph, Step, exit};
use crate::leaf::registers::{Registers, Uses};
use crate::{Code, Scan};

/// How a function is reached from within its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// By a call, that returns there.
    Call { after: u64 },
    /// By a jump, or because code before it ends there, from the function that begins there.
    Jump { from: u64 },
}

/// What is read before it is written from some place on.
#[derive(Clone, Debug, Default)]
struct Ahead {
    reads: Registers,
    /// Functions that are called, and what is written before.
    calls: Vec<(u64, Registers)>,
    /// Where it returns: what is written before, on all ways.
    returns: Option<Registers>,
}

impl Ahead {
    fn leave(&mut self, defined: Registers) {
        self.returns = Some(self.returns.map_or(defined, |known| known & defined));
    }
}

/// Where it was gone on from, and what was written before on all ways there.
#[derive(Debug, Default)]
struct Seen(BTreeMap<u64, Registers>);

impl Seen {
    /// One more way to a place; what is written on all of them, if that is less than before.
    fn add(&mut self, place: u64, defined: Registers) -> Option<Registers> {
        let known = self.0.get(&place).copied();
        let both = known.map_or(defined, |known| known & defined);
        (self.0.insert(place, both) != Some(both)).then_some(both)
    }
}

/// Who leads where within a file.
#[derive(Debug)]
pub(crate) struct Expected<'data, 'scan> {
    code: &'scan Code<'data>,
    scan: &'scan Scan,
    /// By the address that is led to.
    sites: BTreeMap<u64, Vec<Site>>,
    /// Addresses that others than these may call: those that other files can name, and those that
    /// are taken.
    reached: BTreeSet<u64>,
    /// What is known of functions that are called.
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

    /// What callers of the code at `entry` may read afterwards; `None` if nobody is known to lead
    /// there.
    pub(crate) fn after(&mut self, entry: u64) -> Option<Registers> {
        let is_reached = self.reached.contains(&entry);
        if !is_reached && !self.sites.contains_key(&entry) {
            return None;
        }
        let mut result = if is_reached { Registers::RETURNED } else { Registers::NONE };
        // Functions whose return is the entry's.
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

    /// What is read from some place on, called functions included.
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

    /// What is read from some place on, without what called functions read.
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
                    // Another file's function returns something of its own.
                    Exit::Linked => break,
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

    /// A call; what registers hold behind it that is none of what they held before.
    fn call(&self, called: Called, defined: Registers, ahead: &mut Ahead) -> Registers {
        if let Called::At(callee) = called
            && !self.reached.contains(&callee)
            && !self.is_linked(callee)
        {
            ahead.calls.push((callee, defined));
            return Registers::NONE;
        }
        !Registers::PRESERVED
    }

    /// Whether there is a jump by the table of linkage, to a function of another file.
    fn is_linked(&self, address: u64) -> bool {
        let bytes = self.code.at(address).unwrap_or_default();
        let instructions = iced_x86::Decoder::with_ip(64, bytes, address, 0).into_iter();
        // A landing pad comes first.
        instructions.take(2).any(|instruction| exit(&instruction) == Exit::Linked)
    }
}

fn uses(factory: &mut InstructionInfoFactory, step: &Step) -> Uses {
    let info = factory.info(&step.instruction);
    Uses::of(&step.instruction, info)
}
