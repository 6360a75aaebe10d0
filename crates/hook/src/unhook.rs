//! Takes hooks out of a running process, when the observer orders that ([`crate::Ledger::unhook`]).
//!
//! A page of code with hooks is the process's own copy of a page of the file. Once the kernel drops
//! the copy (MADV_DONTNEED), whichever thread comes there next executes the file's page: no thread
//! ever sees half of the change. Stubs stay, since a thread may be inside one.
//!
//! A page goes back as a whole, and only if nothing but its hooks goes with it:
//!
//! - all functions hooked in it are to lose their hooks, and no jump reaches into another page;
//! - it was the file's before it was hooked, and has changed in nothing but the hooks. One with a
//!   debugger's breakpoint, or with changes of the program's own, keeps its hooks;
//! - it is mapped from the same place of the same file as then. Programs that copy their code to
//!   huge pages keep their hooks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use rustix::mm::Advice;

use crate::giving_up::is_restricted;
use crate::ledger::OwnLedger;
use crate::mapping::{self, Mapping};
use crate::page::{PAGE, address, page};
use crate::process::{self, IS_UNHOOKING, ORDERS_DONE};

/// The most pages that one call of a hooked function takes hooks out of: a few microseconds each,
/// and some tens for the list of the process's mappings.
const AT_ONCE: usize = 8;

/// Bytes that are read at a time to compare a page. They lie on the program's stack.
const PIECE: usize = 512;

/// The content of a page in short: FNV-1a of its words, which is enough to notice a change that was
/// not made to deceive.
type Content = u64;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// A page of code whose hooks can be taken out.
#[derive(Debug)]
struct Page {
    start: u64,
    /// The functions that are hooked in it.
    sites: Range<u32>,
    /// With the hooks.
    content: Content,
    mapping: Mapping,
    /// Its hooks are out, or stay for good.
    is_over: AtomicBool,
}

/// Pages that were hooked together, and those that were hooked before them. No lock: a child of
/// fork(2) might inherit one that is held.
#[derive(Debug)]
struct Hooked {
    ledger: &'static OwnLedger,
    pages: Vec<Page>,
    before: Option<&'static Hooked>,
}

static HOOKED: AtomicPtr<Hooked> = AtomicPtr::new(std::ptr::null_mut());

fn last() -> Option<&'static Hooked> {
    // SAFETY: null, or what `add` has leaked.
    // Ordering: Acquire pairs with the store in `add`.
    unsafe { HOOKED.load(Ordering::Acquire).as_ref() }
}

/// Adds pages whose hooks were just made. One thread at a time does this: the one that hooks.
///
/// * `patches`: the first and the last address of each change, and the function's number, by
///   address.
/// * `unchanged`: the pages, of those, that were the file's before.
pub(crate) fn add(
    ledger: &'static OwnLedger,
    patches: &[(u64, u64, u32)],
    unchanged: &BTreeSet<u64>,
) {
    let split = |(first, last, _): &&(u64, u64, u32)| page(*first) != page(*last);
    let split: BTreeSet<u64> = patches
        .iter()
        .filter(split)
        .flat_map(|(first, last, _)| [page(*first), page(*last)])
        .collect();
    let of_page = patches.chunk_by(|one, other| page(one.0) == page(other.0));
    let pages = of_page.filter_map(|patches| {
        let ((first, _, lowest), (_, _, highest)) = (patches.first()?, patches.last()?);
        let start = page(*first);
        let can_go = unchanged.contains(&start) && !split.contains(&start);
        let content = content(start).filter(|_| can_go)?;
        let (is_over, mapping) = (AtomicBool::new(false), Mapping::default());
        Some(Page { start, sites: *lowest..highest + 1, content, mapping, is_over })
    });
    let mut pages: Vec<Page> = pages.collect();
    let starts: Vec<u64> = pages.iter().map(|page| page.start).collect();
    mapping::of_pages(starts.iter().copied(), |start, mapping| {
        if let Ok(number) = starts.binary_search(&start) {
            pages[number].mapping = mapping;
        }
    });
    if !pages.is_empty() {
        let hooked = Box::leak(Box::new(Hooked { ledger, pages, before: last() }));
        // Ordering: pairs with the load in `last`: the pages are there.
        HOOKED.store(hooked, Ordering::Release);
        // An order may have come since the functions were noted.
        ORDERS_DONE.store(process::unhook_orders().wrapping_sub(1), Ordering::Relaxed);
    }
}

/// Takes out hooks as the observer has ordered: of some pages at a call. Makes system calls; takes
/// no lock, allocates nothing, and leaves `errno`. Hooked functions call it, with room for some
/// kilobytes on their stack.
pub(crate) extern "C" fn take_out() {
    // Ordering: pairs with the store below.
    if IS_UNHOOKING.swap(true, Ordering::Acquire) {
        return;
    }
    let orders = process::unhook_orders();
    let all = || std::iter::successors(last(), |hooked| hooked.before);
    // A process that has restricted its system calls keeps its hooks.
    let next = all().find(|hooked| hooked.to_go().next().is_some());
    match next.filter(|_| !is_restricted()) {
        Some(hooked) => hooked.give_back(),
        None => ORDERS_DONE.store(orders, Ordering::Relaxed),
    }
    // Ordering: pairs with the swap above.
    IS_UNHOOKING.store(false, Ordering::Release);
}

impl Hooked {
    /// Pages whose hooks are to be taken out, and still are there.
    fn to_go(&self) -> impl Iterator<Item = &Page> {
        let is_ordered = |page: &Page| page.sites.clone().all(|site| self.ledger.takes_out(site));
        self.pages
            .iter()
            .filter(|page| !page.is_over.load(Ordering::Relaxed))
            .filter(move |page| is_ordered(page))
    }

    /// Gives back the next of these pages, as far as they can be. They are over in any case.
    fn give_back(&self) {
        let mut pages: [Option<&Page>; AT_ONCE] = [None; AT_ONCE];
        pages.iter_mut().zip(self.to_go()).for_each(|(place, page)| *place = Some(page));
        let pages = || pages.iter().flatten();
        mapping::of_pages(pages().map(|page| page.start), |start, mapping| {
            pages().filter(|page| page.start == start).for_each(|page| page.give_back(&mapping));
        });
        pages().for_each(|page| page.is_over.store(true, Ordering::Relaxed));
    }
}

impl Page {
    /// Gives the page, which is mapped like this now, back to its file, if nothing speaks against
    /// it.
    fn give_back(&self, mapping: &Mapping) {
        if mapping.is_as(&self.mapping, self.start) && content(self.start) == Some(self.content) {
            let at = std::ptr::with_exposed_provenance_mut(address(self.start));
            // SAFETY: dropping a copy of the file's code leaves the file's code. The copy differs
            // from it in the jumps over entries alone, and their stubs stay. If the kernel refuses,
            // as for locked memory, the hooks stay.
            let _ = unsafe { rustix::mm::madvise(at, address(PAGE), Advice::LinuxDontNeed) };
        }
    }
}

/// What a page holds now; `None` if it cannot be read. The program may have unmapped it.
fn content(page: u64) -> Option<Content> {
    let mut content = FNV_OFFSET;
    for at in (page..page + PAGE).step_by(PIECE) {
        let mut piece = [0; PIECE];
        read(at, &mut piece)?;
        for word in piece.chunks_exact(size_of::<u64>()) {
            let word = word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            content = (content ^ word).wrapping_mul(FNV_PRIME);
        }
    }
    Some(content)
}

/// Reads memory of this process, which need not be mapped.
fn read(at: u64, bytes: &mut [u8]) -> Option<()> {
    let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let from = std::ptr::with_exposed_provenance_mut(address(at));
    let from = libc::iovec { iov_base: from, iov_len: bytes.len() };
    let own = rustix::process::getpid().as_raw_pid();
    // SAFETY: the C library's variable of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    // SAFETY: the kernel writes to `bytes` and checks what it reads.
    let read = unsafe { libc::process_vm_readv(own, &raw const to, 1, &raw const from, 1, 0) };
    // SAFETY: as above.
    unsafe { *errno = kept };
    (usize::try_from(read) == Ok(bytes.len())).then_some(())
}

#[cfg(test)]
mod tests {
    use std::arch::global_asm;
    use std::path::Path;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Hooks;
    use crate::arch::tests::{COUNTING, can_move, one_at_a_time};
    use crate::arch::thread_block::time_next;
    use crate::ledger::{Ledger, OwnLedger};
    use crate::plan::PlannedEntry;

    // Two pages of their own, with two functions each: twice the argument, and three times.
    global_asm!(
        ".section .text.dimmer_hook_unhook_tests,\"ax\",@progbits",
        ".irp page, first, second",
        ".p2align 12",
        ".hidden dimmer_hook_test_\\page\\()_two",
        ".globl dimmer_hook_test_\\page\\()_two",
        "dimmer_hook_test_\\page\\()_two:",
        ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
        "lea rax, [2 * rdi]",
        "ret",
        ".p2align 6",
        ".hidden dimmer_hook_test_\\page\\()_three",
        ".globl dimmer_hook_test_\\page\\()_three",
        "dimmer_hook_test_\\page\\()_three:",
        ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
        "lea rax, [rdi + 2 * rdi]",
        "ret",
        ".endr",
        ".p2align 12",
        ".text",
    );

    unsafe extern "C" {
        fn dimmer_hook_test_first_two(number: u64) -> u64;
        fn dimmer_hook_test_first_three(number: u64) -> u64;
        fn dimmer_hook_test_second_two(number: u64) -> u64;
        fn dimmer_hook_test_second_three(number: u64) -> u64;
    }

    /// What each function starts with.
    const HEAD: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

    type Function = unsafe extern "C" fn(u64) -> u64;
    const FUNCTIONS: [Function; 4] = [
        dimmer_hook_test_first_two,
        dimmer_hook_test_first_three,
        dimmer_hook_test_second_two,
        dimmer_hook_test_second_three,
    ];

    fn is_hooked(function: Function) -> bool {
        let mut head = [0; HEAD.len()];
        read(function as *const () as u64, &mut head).unwrap();
        head != HEAD
    }

    fn call(function: Function, times: u64) {
        let is_two = |one: &Function| std::ptr::fn_addr_eq(*one, function);
        let by = if FUNCTIONS.iter().step_by(2).any(is_two) { 2 } else { 3 };
        for number in 0..times {
            // SAFETY: the function needs nothing else.
            assert_eq!(unsafe { function(number) }, by * number);
        }
    }

    fn are_hooked() -> [bool; 4] {
        FUNCTIONS.map(is_hooked)
    }

    #[test]
    fn hooks_are_taken_out_of_whole_pages_while_other_threads_call_there() {
        if !can_move() {
            return;
        }
        let _one_at_a_time = one_at_a_time();
        let directory = tempfile::tempdir().unwrap();
        let own = OwnLedger::create(directory.path()).unwrap();
        let mut hooks = Hooks::new(own, BTreeSet::new(), None);
        hooks.move_by(COUNTING, false).unwrap();
        let base = FUNCTIONS[0] as *const () as u64;
        let object = hooks.ledger().add_objects(&[(base, Path::new("tests"))]).unwrap().start;
        let entry = |function: Function| {
            (PlannedEntry::new(function as *const () as u64 - base, 5), &HEAD[..])
        };
        let unchanged = BTreeSet::from([base, base + PAGE]);
        // SAFETY: the functions are on pages of their own, start with an instruction of five bytes,
        // and no other thread calls them yet.
        let failed = unsafe { hooks.patch(object, base, &FUNCTIONS.map(entry), &unchanged) };
        assert_eq!((failed.unwrap(), are_hooked()), (0, [true; 4]));
        let observer = Ledger::open(hooks.ledger().path()).unwrap();
        let timed = |function| {
            time_next();
            call(function, 1);
            // The next one is only looked at.
            call(function, 1);
        };
        // Each second timed call takes hooks out, and some calls find that nothing is left to do.
        let until = |is_there: &dyn Fn() -> bool, function| {
            let end = Instant::now() + Duration::from_secs(60);
            while !is_there() && Instant::now() < end {
                timed(function);
            }
        };
        let are_done = || ORDERS_DONE.load(Ordering::Relaxed) == process::unhook_orders();
        timed(FUNCTIONS[0]);
        let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for function in [FUNCTIONS[0], FUNCTIONS[1]] {
                let (is_over, calls) = (&is_over, &calls);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        call(function, 1000);
                        calls.fetch_add(1000, Ordering::Relaxed);
                    }
                });
            }
            let more = || {
                let before = calls.load(Ordering::Relaxed);
                while calls.load(Ordering::Relaxed) < before + 10_000 {
                    std::thread::yield_now();
                }
            };
            more();
            // One function of two: nothing happens.
            observer.unhook(&[0]);
            timed(FUNCTIONS[1]);
            more();
            assert_eq!(are_hooked(), [true; 4]);
            // Its neighbour's, too, and one of the other page.
            observer.unhook(&[1, 2]);
            // Another thread may be about it.
            until(&|| !are_hooked()[0], FUNCTIONS[3]);
            more();
            assert_eq!(are_hooked(), [false, false, true, true]);
            is_over.store(true, Ordering::Relaxed);
        });
        until(&are_done, FUNCTIONS[2]);
        assert!(are_done());
        // A page that was changed since it was hooked keeps its hooks.
        let changed = std::fs::File::open("/proc/self/exe").unwrap();
        let at = base + PAGE + 4000;
        // SAFETY: the bytes belong to no function, and no other thread runs in the page.
        unsafe { crate::replace_code(&changed, at, &[0xcc]) }.unwrap();
        observer.unhook(&[3]);
        until(&are_done, FUNCTIONS[2]);
        assert!(are_done());
        assert_eq!(are_hooked(), [false, false, true, true]);
    }
}
