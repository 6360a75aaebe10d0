//! Backtraces show the program's frames alone: between a hooked call that is timed or moved and its
//! caller there is a frame of the hooks', and this library's own come first. Those end where the
//! program's call returns to.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

use crate::next::Next;

static BACKTRACE: Next = Next::new(c"backtrace");
static UNWIND: Next = Next::new(c"_Unwind_Backtrace");

/// Looks where the functions go on, before anybody calls them, as the loader's lock may be held
/// then.
pub(crate) fn find_next() {
    BACKTRACE.get();
    UNWIND.get();
}

/// The most frames of a backtrace without those of hooks.
const MOST: usize = 512;

/// Frames of hooks that there is room for besides.
const HOOKS: usize = 128;

type Frames = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// backtrace(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn backtrace() {
    naked_asm!("mov rdx, [rsp]", "jmp {own}", own = sym own_backtrace)
}

/// Likewise; the call returns to `caller`.
///
/// # Safety
/// As in the C library.
unsafe extern "C" fn own_backtrace(
    frames: *mut *mut c_void,
    size: c_int,
    caller: *mut c_void,
) -> c_int {
    let next = BACKTRACE.get();
    let wanted = usize::try_from(size).unwrap_or_default();
    if next.is_null() || wanted == 0 || wanted > MOST {
        return if next.is_null() {
            0
        } else {
            // SAFETY: the C library's function, with what the caller gave.
            unsafe { call(next, frames, size) }
        };
    }
    let mut all = [std::ptr::null_mut(); MOST + HOOKS];
    let room = c_int::try_from(wanted + HOOKS).unwrap_or(size);
    // SAFETY: there is so much room.
    let found = unsafe { call(next, all.as_mut_ptr(), room) };
    let found = &all[..usize::try_from(found).unwrap_or_default().min(all.len())];
    let own = found.iter().position(|frame| *frame == caller).unwrap_or_default();
    let mut number = 0;
    let mut is_caller = false;
    for frame in &found[own..] {
        let is_hooks = dimmer_hook::is_stub(frame.addr());
        if !is_hooks {
            if number == wanted {
                break;
            }
            // As unwinders take the frame of hooks for a signal's, they show the caller one byte
            // further up.
            let frame = if is_caller { frame.wrapping_byte_add(1) } else { *frame };
            // SAFETY: the caller has room for so many.
            unsafe { frames.wrapping_add(number).write(frame) };
            number += 1;
        }
        is_caller = is_hooks;
    }
    c_int::try_from(number).unwrap_or(size)
}

/// # Safety
/// `next` must be such a function, and there must be room for `size` frames.
unsafe fn call(next: *mut c_void, frames: *mut *mut c_void, size: c_int) -> c_int {
    // SAFETY: as promised to this function.
    let next = unsafe { std::mem::transmute::<*mut c_void, Frames>(next) };
    // SAFETY: as promised to this function.
    unsafe { next(frames, size) }
}

type Step = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int;
type Unwind = unsafe extern "C-unwind" fn(Step, *mut c_void) -> c_int;

/// What the caller of [`_Unwind_Backtrace`] gave, and where it goes on.
struct Caller {
    step: Step,
    argument: *mut c_void,
    returns_to: usize,
    is_reached: bool,
}

unsafe extern "C" {
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// Likewise for what compiled code looks at its stack by.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Unwind_Backtrace() {
    naked_asm!("mov rdx, [rsp]", "jmp {own}", own = sym own_unwind)
}

/// Likewise; the call returns to `returns_to`.
///
/// # Safety
/// As in libgcc.
unsafe extern "C-unwind" fn own_unwind(
    step: Step,
    argument: *mut c_void,
    returns_to: usize,
) -> c_int {
    /// _URC_END_OF_STACK
    const END: c_int = 5;
    let next = UNWIND.get();
    if next.is_null() {
        return END;
    }
    // SAFETY: libgcc's function of this name.
    let next = unsafe { std::mem::transmute::<*mut c_void, Unwind>(next) };
    let mut caller = Caller { step, argument, returns_to, is_reached: false };
    // SAFETY: as the caller promises; `caller` lives until the call returns.
    unsafe { next(pass_on, (&raw mut caller).cast()) }
}

/// Shows the caller a frame, unless it is one of hooks.
///
/// # Safety
/// Called by [`_Unwind_Backtrace`] alone.
unsafe extern "C-unwind" fn pass_on(context: *mut c_void, caller: *mut c_void) -> c_int {
    // SAFETY: what was given above.
    let caller = unsafe { &mut *caller.cast::<Caller>() };
    // SAFETY: the unwinder's own context; the function that goes on is of the same library.
    let address = unsafe { _Unwind_GetIP(context) };
    caller.is_reached |= address == caller.returns_to;
    if !caller.is_reached || dimmer_hook::is_stub(address) {
        return 0;
    }
    // SAFETY: as the caller of the unwinder promises.
    unsafe { (caller.step)(context, caller.argument) }
}
