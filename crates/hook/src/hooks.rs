//! Hooks the functions of a loaded file.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::PathBuf;

use dimmer_processor::class::InstructionClass;
use dimmer_scan::Code;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::arch::entry::{self as stub, Moving, Place, Stub};
use crate::arch::registers::Form;
use crate::arch::{self, delegate, mark, migrate, rows, section, swap, thread_block};
use crate::arena::Arena;
use crate::error::{CannotMove, HookError};
use crate::file::Mapped;
use crate::gate;
use crate::giving_up::{GivenUp, has_given_up, unrestricted};
use crate::ledger::{LedgerError, Orders, OwnLedger};
use crate::marks;
use crate::mover::{self, Mover};
use crate::objects::Loaded;
use crate::page::{PAGE, address, page};
use crate::plan::{Plan, PlannedEntry};
use crate::sections::{self, Watcher};
use crate::site::{Passed, Site};
use crate::{process, slots, unhook};

/// The most bytes of a stub: some 50 to count, some 20 to hand a mark over, and the displaced
/// instructions, of 19 bytes at most, some of which become longer elsewhere. Most stubs have less
/// than the 64 bytes of a cache line.
const STUB_BYTES: usize = 128;

/// Stubs start at a cache line.
const LINE: usize = 64;

/// Bytes of the part of a stub for timed and moved calls.
const RARE_BYTES: usize = 64;

/// Offset in the stubs' memory of the address of the code for migrated calls.
const MIGRATE_AT: usize = 8;

/// Offset in the stubs' memory of the address of the code for delegated calls of leaf functions.
const DELEGATE_AT: usize = 16;

/// Offset in the stubs' memory of the address of the code for marks.
const MARK_AT: usize = 24;

/// Offset in the stubs' memory of the address of the code for sections.
const SECTION_AT: usize = 32;

/// Bytes of these addresses, and of the one before them.
const ADDRESS_BYTES: usize = 40;

/// Hooks of this process. There is one such value at most, and it lives until the process ends: a
/// thread may be inside a stub. The observer can order that functions whose calls could move lead
/// to their stubs no more ([`crate::Ledger::unhook`]), with all others in their code pages.
#[derive(Debug)]
pub struct Hooks {
    /// Never unmapped, because hooked code writes to it.
    ledger: &'static OwnLedger,
    classes: BTreeSet<InstructionClass>,
    /// The directory of plans, which list the entries of a file to hook.
    plans: Option<PathBuf>,
    /// How calls are moved; `None` if they are not.
    moves: Option<Moves>,
    /// Whether entries that are marks pass them.
    pass_marks: bool,
    /// Whether the calls of entries that are marks are watched instead.
    watch: bool,
    /// Reason why nothing is to be hooked, if there is one.
    refused: Option<&'static str>,
    /// Whether the overhead of timing was measured, or the attempt failed.
    is_calibrated: Cell<bool>,
    /// Whether calls can be counted.
    is_begun: Cell<bool>,
    /// Base addresses of the files with hooked functions.
    hooked: BTreeSet<u64>,
    /// Base address of the file with the hooks' own code; `None` if the loader does not report it.
    own: Option<u64>,
}

/// How calls of hooked functions are moved.
#[derive(Clone, Copy, Debug)]
struct Moves {
    /// Whether calls move before anything is decided.
    all: bool,
    /// Whether functions have gates, where threads stop, instead of decisions.
    have_gates: bool,
    /// How the processor's state that goes with them is stored.
    form: Form,
}

impl Hooks {
    /// Makes hooks that count calls in `ledger`, of functions with instructions of these classes.
    /// The results of scans are kept in the directory `plans`, which must be for these classes
    /// alone.
    #[must_use]
    pub fn new(
        ledger: OwnLedger,
        classes: BTreeSet<InstructionClass>,
        plans: Option<PathBuf>,
    ) -> Self {
        Self {
            ledger: Box::leak(Box::new(ledger)),
            classes,
            plans,
            moves: None,
            pass_marks: false,
            watch: false,
            refused: None,
            is_calibrated: Cell::new(false),
            is_begun: Cell::new(false),
            hooked: BTreeSet::new(),
            own: own_base(),
        }
    }

    /// From now on, `mover` moves calls of functions that are hooked later, if
    /// [`crate::Ledger::decide`] decides that. Before any decision, all calls move if `all`, and
    /// otherwise none.
    ///
    /// # Errors
    /// [`CannotMove`].
    pub fn move_by(&mut self, mover: Mover, all: bool) -> Result<(), CannotMove> {
        self.prepare_to_move(mover, |form| Moves { all, have_gates: false, form })
    }

    /// From now on, functions that are hooked later have a gate ([`crate::gate`]): hooks ask
    /// `mover` at the first call of each round that a thread makes, and report the end of that call
    /// if it wants to know. Whatever is decided, calls are not moved otherwise.
    ///
    /// # Errors
    /// [`CannotMove`].
    pub fn stop_at_gates(&mut self, mover: Mover) -> Result<(), CannotMove> {
        self.prepare_to_move(mover, |form| Moves { all: false, have_gates: true, form })
    }

    /// From now on, each call of an entry that is hooked later, and that its plan lists as a mark,
    /// calls `pass` with the mark's number before its first instruction, on the caller's stack.
    /// `pass` returns the signals to block from then on, in the kernel's format, or
    /// [`crate::SIGNALS_ARE_RIGHT`]. It is not called in the middle of another mark, while
    /// migration is inhibited, while AMX tiles are configured, and in processes whose calls are
    /// only counted.
    ///
    /// # Errors
    /// [`CannotMove`]: the processor's state cannot be kept meanwhile.
    pub fn pass_marks(&mut self, pass: extern "C" fn(u32) -> u64) -> Result<(), CannotMove> {
        Form::find()?.put_in_force();
        marks::set(pass);
        self.pass_marks = true;
        Ok(())
    }

    /// From now on, each call of an entry that is hooked later, and that its plan lists as a mark,
    /// is reported to `watcher` with the mark's number. It is not, where marks are not passed
    /// ([`Self::pass_marks`]); that cannot be asked for as well.
    ///
    /// # Errors
    /// [`CannotMove`]: the processor's state cannot be kept meanwhile.
    pub fn watch(&mut self, watcher: Watcher) -> Result<(), CannotMove> {
        Form::find()?.put_in_force();
        sections::set(watcher);
        self.watch = true;
        Ok(())
    }

    /// Whether entries that are marks pass them.
    pub(crate) const fn are_marks_passed(&self) -> bool {
        self.pass_marks
    }

    fn prepare_to_move(
        &mut self,
        mover: Mover,
        moves: impl FnOnce(Form) -> Moves,
    ) -> Result<(), CannotMove> {
        let form = Form::find()?;
        form.put_in_force();
        delegate::prepare(form);
        mover::set(mover);
        self.ledger.map_decisions().map_err(|_| CannotMove::NoDecisions)?;
        self.moves = Some(moves(form));
        Ok(())
    }

    /// The observer's orders for calls that move.
    #[must_use]
    pub fn orders(&self) -> Orders<'static> {
        self.ledger.orders()
    }

    /// From now on, nothing is hooked. The ledger notes the files that would have been, with the
    /// reason.
    pub fn refuse(&mut self, why: &'static str) {
        self.refused = Some(why);
    }

    /// The base addresses of the files with hooked functions.
    #[must_use]
    pub fn hooked(&self) -> &BTreeSet<u64> {
        &self.hooked
    }

    pub(crate) fn ledger(&self) -> &'static OwnLedger {
        self.ledger
    }

    /// Hooks the functions of loaded files, and notes in the ledger what went wrong with each.
    ///
    /// Takes the time to scan the files that have no plan, and a few microseconds for each
    /// function.
    ///
    /// # Safety
    /// No other thread may run the files' code meanwhile, and this one must not come from there.
    /// Each file must be loaded at its base, and stay there as long as its code is run.
    pub unsafe fn take(&mut self, loaded: &[&Loaded]) {
        // The file with the hooks' own code is not one of the program's files.
        let is_own = |file: &&&Loaded| Some(file.base) == self.own;
        let loaded: Vec<&Loaded> = loaded.iter().filter(|file| !is_own(file)).copied().collect();
        let objects: Vec<_> = loaded.iter().map(|file| (file.base, &*file.path)).collect();
        let noted = unrestricted().and_then(|()| self.ledger.add_objects(&objects));
        let noted = noted.unwrap_or_default();
        loaded.iter().skip(noted.len()).for_each(|_| self.ledger.leave_out_file());
        for (object, file) in noted.zip(loaded) {
            // SAFETY: the caller guarantees the contract of `take_as`, which is the same.
            let taken = unsafe { self.take_as(object, file) };
            if taken.as_ref().is_ok_and(|is_hooked| *is_hooked) {
                self.hooked.insert(file.base);
            }
            if let Err(error) = taken {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                self.ledger.set_problem(object, &format!("{error}{}", cause.unwrap_or_default()));
            }
        }
    }

    /// Reserves room for counters, before anything is hooked. Most processes of a shell script have
    /// nothing to hook, and need no room.
    fn begin(&self) -> Result<(), LedgerError> {
        if !self.is_begun.get() {
            slots::begin(self.ledger).inspect_err(|error| self.ledger.give_up(error))?;
            process::begin(self.ledger.memory());
            rows::begin();
            self.is_begun.set(true);
        }
        Ok(())
    }

    /// Hooks the functions of one loaded file, with the number `object` in the ledger. Returns
    /// whether there are any.
    ///
    /// # Safety
    /// As [`Hooks::take`].
    unsafe fn take_as(&self, object: usize, loaded: &Loaded) -> Result<bool, HookError> {
        let plan = Plan::of(&loaded.path, &self.classes, self.plans.as_deref())?;
        if let Some(runtime) = plan.runtime {
            has_given_up(GivenUp::TimeStamps);
            let what = if runtime.copies_code() {
                "nothing is hooked here, and calls are only counted"
            } else {
                "calls are only counted"
            };
            let problem = format!("{what} in this process, because of the runtime of {runtime}");
            self.ledger.set_problem(object, &problem);
            if runtime.copies_code() {
                return Ok(false);
            }
        }
        if plan.entries.is_empty() {
            return Ok(false);
        }
        if !self.is_calibrated.replace(true) {
            // Not before there is something to hook: most processes of a shell script have nothing,
            // and end soon. If calibration fails, times are somewhat too long.
            let _ = self.calibrate();
        }
        let file = File::open(&loaded.path).map_err(HookError::Read)?;
        let bytes = Mapped::new(&file).map_err(HookError::Read)?;
        let code = Code::read(&bytes)?;
        rehearse(&file).map_err(|source| HookError::Memory { what: "change code", source })?;
        let writable = code.writable()?;
        let entry = |entry: &PlannedEntry| {
            if writable.iter().any(|segment| segment.contains(&entry.address)) {
                return None;
            }
            let head = code.at(entry.address)?.get(..usize::from(entry.displaced))?;
            // SAFETY: the loader mapped the file's code there, readable.
            let is_same = unsafe { holds(loaded.base + entry.address, head) };
            is_same.then_some((*entry, head))
        };
        let entries: Vec<(PlannedEntry, &[u8])> = plan.entries.iter().filter_map(entry).collect();
        let unchanged = unchanged(&bytes, loaded.base, &entries);
        // SAFETY: the caller guarantees the contract of `take`; the heads are those of functions
        // that can be hooked.
        let failed = unsafe { self.patch(object, loaded.base, &entries, &unchanged)? };
        let different = plan.entries.len() - entries.len();
        let problems =
            [(different, "differ from the file, or may be changed"), (failed, "cannot be moved")];
        let problems = problems.iter().filter(|(number, _)| *number > 0);
        let problems: Vec<String> = problems
            .map(|(number, what)| format!("the entries of {number} functions {what}"))
            .collect();
        if !problems.is_empty() {
            self.ledger.set_problem(object, &problems.join("; "));
        }
        Ok(failed < entries.len())
    }

    /// Puts jumps over entries, given with the bytes to displace. Returns the number of entries
    /// that it had to leave out. `unchanged`: the pages of code that are as in the file.
    ///
    /// # Safety
    /// As [`Hooks::take`]. In addition, `dimmer_scan` must report that the entries can be hooked.
    pub(crate) unsafe fn patch(
        &self,
        object: usize,
        base: u64,
        entries: &[(PlannedEntry, &[u8])],
        unchanged: &BTreeSet<u64>,
    ) -> Result<usize, HookError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(0) };
        if let Some(why) = self.refused {
            return Err(HookError::Refused(why));
        }
        self.begin()?;
        let code = base + first.0.address..base + last.0.address;
        let memory = |what| move |source| HookError::Memory { what, source };
        // The addresses of the code for timed calls, for moved ones of both kinds and for marks
        // come first, then the rarely executed parts, then the stubs.
        let stubs_at = (ADDRESS_BYTES + entries.len() * RARE_BYTES).next_multiple_of(LINE);
        let mut arena = Arena::near(&code, stubs_at + entries.len() * STUB_BYTES)
            .map_err(memory("map memory near the code"))?;
        let (mut rare_used, mut used) = (ADDRESS_BYTES, stubs_at);
        let mut is_written = arena.write(0, &swap::slow().to_le_bytes());
        is_written &= arena.write(MIGRATE_AT, &migrate::entry().to_le_bytes());
        is_written &= arena.write(DELEGATE_AT, &delegate::entry().to_le_bytes());
        is_written &= arena.write(MARK_AT, &mark::entry().to_le_bytes());
        is_written &= arena.write(SECTION_AT, &section::entry().to_le_bytes());
        let addresses: Vec<u64> = entries.iter().map(|(entry, _)| entry.address).collect();
        let are_moved = self.moves.is_some_and(|moves| moves.all);
        let sites =
            slots::with_all(|slots| self.ledger.add_sites(object, &addresses, are_moved, slots))?;
        let (mut patches, mut changes) = (Vec::with_capacity(entries.len()), Vec::new());
        let records: &'static mut [Site] =
            entries.iter().map(|_| Site::default()).collect::<Vec<_>>().leak();
        let thread = thread_block::thread_offset();
        for (((entry, head), record), site) in entries.iter().zip(&mut *records).zip(sites) {
            let function = base + entry.address;
            record.number = site;
            record.mark = entry.mark.unwrap_or_default();
            let passed = entry.leaf.as_ref().zip(self.moves);
            record.passed =
                passed.map(|(leaf, moves)| Passed::new(leaf, moves.form)).unwrap_or_default();
            let place = Place {
                function,
                stub: arena.address() + used as u64,
                rare: arena.address() + rare_used as u64,
                site: record.number,
                record: std::ptr::from_ref(record) as u64,
                mark_at: entry
                    .mark
                    .filter(|_| self.pass_marks || self.watch)
                    .map(|_| if self.watch { SECTION_AT } else { MARK_AT } as u64)
                    .map(|at| arena.address() + at),
                slow_at: arena.address(),
                moving: self.moving(site).filter(|_| entry.mark.is_none()).map(
                    |(decision, is_gate)| Moving {
                        decision,
                        is_gate,
                        away_at: arena.address()
                            + if entry.leaf.is_some() { DELEGATE_AT } else { MIGRATE_AT } as u64,
                    },
                ),
                thread,
            };
            let Some(stub) = stub::build(head, &place) else { continue };
            record.body = place.stub + stub.body as u64;
            record.displaced = place.stub + stub.displaced as u64;
            is_written &= arena.write(used, &stub.code) && arena.write(rare_used, &stub.rare);
            is_written &= stub.rare.len() <= RARE_BYTES;
            used += stub.code.len().next_multiple_of(LINE);
            rare_used += RARE_BYTES;
            changes.push((function + stub.patch_at as u64, function + stub.reach(), site));
            patches.push((function, stub));
        }
        if self.pass_marks {
            marks::add(records);
        }
        if !is_written {
            let source =
                io::Error::new(io::ErrorKind::OutOfMemory, "stubs are longer than expected");
            return Err(HookError::Memory { what: "write the stubs", source });
        }
        arena.seal().map_err(memory("make the stubs executable"))?;
        // SAFETY: the patches lead to stubs that are in place, and no thread runs the code
        // meanwhile.
        unsafe { write(&patches) }.map_err(memory("change the code"))?;
        if self.moves.is_some_and(|moves| !moves.have_gates) {
            unhook::add(self.ledger, &changes, unchanged);
        }
        Ok(entries.len() - patches.len())
    }

    /// The word that decides whether a call of this function goes on in its stub, and whether that
    /// is a gate; `None`: all do.
    fn moving(&self, site: u32) -> Option<(u64, bool)> {
        let decision = self.ledger.decision_at(site)?;
        if self.moves.is_some_and(|moves| moves.have_gates) {
            return gate::open(site).map(|gate| (gate, true));
        }
        Some((decision, false))
    }
}

/// Base address of the file with the hooks' own code; `None` if the loader does not report it. (0
/// is the base of programs that cannot be moved.)
fn own_base() -> Option<u64> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let within = std::ptr::with_exposed_provenance(address(swap::slow()));
    // SAFETY: the address is within loaded code, and `info` lives until the call returns.
    let is_found = unsafe { libc::dladdr(within, info.as_mut_ptr()) } != 0;
    // SAFETY: all-zero bytes are a valid `Dl_info`, so `info` is initialised in any case.
    let info = unsafe { info.assume_init() };
    is_found.then(|| info.dli_fbase.addr() as u64)
}

/// Tests on an unused copy of a file's code whether code that was written can be executed again. A
/// kernel, a filter of system calls or SELinux may refuse that, and a page that is in use must not
/// lose the right to be executed.
///
/// # Errors
/// The refusal of the system.
fn rehearse(file: &File) -> io::Result<()> {
    let access = ProtFlags::READ | ProtFlags::EXEC;
    let anywhere = std::ptr::null_mut();
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page =
        unsafe { rustix::mm::mmap(anywhere, address(PAGE), access, MapFlags::PRIVATE, file, 0) }?;
    let pages = page.expose_provenance() as u64..page.expose_provenance() as u64 + PAGE;
    let change = || {
        // SAFETY: the page is this function's own.
        unsafe { protect(&pages, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        // SAFETY: the page is this function's own; it is writable, and the file has a first byte.
        unsafe { page.cast::<u8>().write_volatile(0) };
        // SAFETY: the page is this function's own.
        unsafe { protect(&pages, MprotectFlags::READ | MprotectFlags::EXEC) }
    };
    let changed = change();
    // SAFETY: the page is this function's own, and no longer in use.
    unsafe { rustix::mm::munmap(page, address(PAGE)) }?;
    Ok(changed?)
}

/// Writes a piece of code over other code of a file.
///
/// # Safety
/// The file must be mapped there, and no thread may run the pages meanwhile.
///
/// # Errors
/// If the system does not allow that. Then nothing has changed.
pub unsafe fn replace_code(file: &File, at: u64, code: &[u8]) -> io::Result<()> {
    rehearse(file)?;
    let patch = Stub { patch: code.to_vec(), ..Stub::default() };
    // SAFETY: the caller guarantees that the file is mapped there and that no thread runs the
    // pages.
    unsafe { write(&[(at, patch)]) }
}

/// Writes patches over code.
///
/// # Safety
/// The patches must lie in mapped code that no thread runs meanwhile.
unsafe fn write(patches: &[(u64, Stub)]) -> io::Result<()> {
    let mut rest = patches;
    while let Some((first, stub)) = rest.first() {
        let start = page(*first);
        let mut end = page(first + stub.reach()) + PAGE;
        let mut number = 1;
        while let Some((next, stub)) = rest.get(number).filter(|(next, _)| page(*next) <= end) {
            end = end.max(page(next + stub.reach()) + PAGE);
            number += 1;
        }
        let (run, after) = rest.split_at(number);
        rest = after;
        let pages = start..end;
        // SAFETY: the pages are mapped, and no thread runs them meanwhile.
        unsafe { protect(&pages, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        for (function, stub) in run {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(address(
                function + stub.patch_at as u64,
            ));
            // SAFETY: code of a whole file that is mapped and was just made writable.
            unsafe { arch::copy(&stub.patch, to) };
        }
        // SAFETY: mapped, and not run by any thread, as before the loop; the loader mapped it this
        // way.
        unsafe { protect(&pages, MprotectFlags::READ | MprotectFlags::EXEC) }?;
    }
    Ok(())
}

/// Changes access with a system call of its own: the C library's function may lie in these pages.
///
/// # Safety
/// The pages must be mapped, and no thread may use them in other ways meanwhile.
unsafe fn protect(pages: &Range<u64>, access: MprotectFlags) -> rustix::io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(address(pages.start));
    let length = address(pages.end - pages.start);
    // SAFETY: the caller guarantees that the pages are mapped and not otherwise used.
    unsafe { rustix::mm::mprotect(start, length, access) }
}

/// The pages of code with these entries that are as in the file.
/// The heads of entries are parts of the file's bytes.
fn unchanged(file: &[u8], base: u64, entries: &[(PlannedEntry, &[u8])]) -> BTreeSet<u64> {
    let of_page = entries.chunk_by(|(one, _), (other, _)| page(one.address) == page(other.address));
    let is_same = |(entry, head): &(PlannedEntry, &[u8])| {
        let into_page = address(entry.address - page(entry.address));
        let in_file = (head.as_ptr() as usize).checked_sub(file.as_ptr() as usize);
        let start = in_file.and_then(|in_file| in_file.checked_sub(into_page));
        let bytes = start.and_then(|start| file.get(start..)?.get(..address(PAGE)));
        // SAFETY: the loader mapped the file's page there, readable.
        bytes.is_some_and(|bytes| unsafe { holds(base + page(entry.address), bytes) })
    };
    let same = of_page.filter_map(|entries| entries.first()).filter(|entry| is_same(entry));
    same.map(|(entry, _)| base + page(entry.address)).collect()
}

/// Whether memory holds these bytes there.
///
/// # Safety
/// The memory must be readable.
unsafe fn holds(at: u64, bytes: &[u8]) -> bool {
    let live = std::ptr::with_exposed_provenance::<u8>(address(at));
    // SAFETY: the caller guarantees readable memory; code does not change meanwhile.
    let live = unsafe { std::slice::from_raw_parts(live, bytes.len()) };
    live == bytes
}
