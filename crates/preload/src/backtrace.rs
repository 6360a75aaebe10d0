//! Makes backtraces show only the program's frames. Between a hooked call that is timed or moved
//! and its caller there is a frame of the hooks, and frames of this library come first. The latter
//! end at the frame to which the program's call returns.

use std::ffi::{CStr, c_int, c_void};

use crate::arch::with_return_address;
use crate::next::Next;

static BACKTRACE: Next = Next::new(c"backtrace");
static UNWIND: Next = Next::new(c"_Unwind_Backtrace");
static GET_IP: Next = Next::new(c"_Unwind_GetIP");

/// Looks up the next functions before the program calls any, because the loader's lock may be held
/// then.
pub(crate) fn find_next() {
    BACKTRACE.get();
    UNWIND.get();
    GET_IP.get();
}

/// The most frames of a backtrace, without those of hooks, that are found elsewhere first. Longer
/// ones lack as many of the outermost frames as there are frames of hooks.
const MOST: usize = 512;

/// Room for frames of hooks and of this library besides.
const HOOKS: usize = 128;

/// The most frames of one that is made on a small stack, as signal handlers have; as many of hooks
/// fit besides, so that each call may be hooked.
const FEW: usize = 32;

type Frames = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

with_return_address! {
    /// backtrace(3).
    extern "C" backtrace own_backtrace
}

/// As backtrace(3); the call returns to `caller`.
///
/// # Safety
/// As in the C library.
unsafe extern "C" fn own_backtrace(
    frames: *mut *mut c_void,
    size: c_int,
    caller: *mut c_void,
) -> c_int {
    let next = BACKTRACE.get();
    if next.is_null() {
        return 0;
    }
    match usize::try_from(size).unwrap_or_default() {
        // SAFETY: the C library's function, with the caller's arguments.
        0 => unsafe { call(next, frames, size) },
        // SAFETY: as the caller guarantees.
        few if few <= FEW => unsafe { elsewhere::<{ 2 * FEW + 8 }>(next, frames, size, caller) },
        // SAFETY: as the caller guarantees.
        most if most <= MOST => unsafe {
            elsewhere::<{ MOST + HOOKS }>(next, frames, size, caller)
        },
        _ => {
            // SAFETY: as above.
            let found = unsafe { call(next, frames, size) };
            // SAFETY: as many frames are there.
            unsafe { without_hooks(frames, found, frames, size, caller) }
        }
    }
}

/// Writes at most `wanted` frames of the program. Takes `ROOM` words of the stack.
///
/// # Safety
/// As [`call`], with room for `wanted` frames.
#[inline(never)]
unsafe fn elsewhere<const ROOM: usize>(
    next: *mut c_void,
    frames: *mut *mut c_void,
    wanted: c_int,
    caller: *mut c_void,
) -> c_int {
    let mut all = [std::ptr::null_mut(); ROOM];
    let room = c_int::try_from(ROOM).unwrap_or_default();
    // SAFETY: `all` has room for `room` frames.
    let found = unsafe { call(next, all.as_mut_ptr(), room) };
    // SAFETY: as many are there, and the caller has room for `wanted`.
    unsafe { without_hooks(all.as_ptr(), found.min(room), frames, wanted, caller) }
}

/// Copies the program's frames from `all`, which has `found`, and returns how many, at most
/// `wanted`.
///
/// # Safety
/// As many frames must be there, and `frames` must have room for `wanted`. It may be `all`.
unsafe fn without_hooks(
    all: *const *mut c_void,
    found: c_int,
    frames: *mut *mut c_void,
    wanted: c_int,
    caller: *mut c_void,
) -> c_int {
    let found = usize::try_from(found).unwrap_or_default();
    // SAFETY: `at` is less than `found`.
    let frame = |at: usize| unsafe { all.wrapping_add(at).read() };
    let own = (0..found).position(|at| frame(at) == caller).unwrap_or_default();
    let mut number = 0;
    let mut is_caller = false;
    for frame in (own..found).map(frame) {
        let is_hooks = dimmer_hook::is_stub(frame.addr());
        if !is_hooks {
            if number == wanted {
                break;
            }
            // Unwinders take the hooks' frame for a signal's, so they report the caller one byte
            // too low.
            let frame = if is_caller { frame.wrapping_byte_add(1) } else { frame };
            let at = usize::try_from(number).unwrap_or_default();
            // SAFETY: there is room for `wanted` frames, and in `all` these have been read.
            unsafe { frames.wrapping_add(at).write(frame) };
            number += 1;
        }
        is_caller = is_hooks;
    }
    number
}

/// Calls a function of the type of backtrace(3).
///
/// # Safety
/// `next` must be such a function, and there must be room for `size` frames.
unsafe fn call(next: *mut c_void, frames: *mut *mut c_void, size: c_int) -> c_int {
    // SAFETY: the caller guarantees that `next` is such a function.
    let next = unsafe { std::mem::transmute::<*mut c_void, Frames>(next) };
    // SAFETY: the caller guarantees room for `size` frames.
    unsafe { next(frames, size) }
}

type Step = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int;
type Unwind = unsafe extern "C-unwind" fn(Step, *mut c_void) -> c_int;

/// The arguments of a call of [`_Unwind_Backtrace`], and its return address.
struct Caller {
    get_ip: GetIp,
    step: Step,
    argument: *mut c_void,
    returns_to: usize,
    is_reached: bool,
}

type GetIp = unsafe extern "C" fn(*mut c_void) -> usize;

/// Looks up a function of the program's unwinder; null if it has none. Contexts belong to one
/// unwinder, so another one's functions must not be called for them.
fn of_unwinder(function: &Next) -> *mut c_void {
    let next = function.get();
    if !next.is_null() {
        return next;
    }
    // The unwinder may have come with a library that the program has loaded, for that library
    // alone.
    // SAFETY: finds a file that is loaded, and loads none.
    let loaded = unsafe { libc::dlopen(UNWINDER.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if loaded.is_null() {
        return loaded;
    }
    // It stays loaded from now on, because it is in use.
    // SAFETY: a lookup of a name, ended by zero, in a file that was found.
    unsafe { libc::dlsym(loaded, function.name().as_ptr()) }
}

/// The unwinder of GCC, which the C library's functions use as well.
const UNWINDER: &CStr = c"libgcc_s.so.1";

with_return_address! {
    /// Likewise for the function by which compiled code inspects its stack.
    extern "C-unwind" _Unwind_Backtrace own_unwind
}

/// As in libgcc; the call returns to `returns_to`.
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
    let (next, get_ip) = (of_unwinder(&UNWIND), of_unwinder(&GET_IP));
    if next.is_null() || get_ip.is_null() {
        return END;
    }
    // SAFETY: libgcc's function of this name.
    let next = unsafe { std::mem::transmute::<*mut c_void, Unwind>(next) };
    // SAFETY: libgcc's function of this name.
    let get_ip = unsafe { std::mem::transmute::<*mut c_void, GetIp>(get_ip) };
    let mut caller = Caller { get_ip, step, argument, returns_to, is_reached: false };
    // SAFETY: the caller's arguments fit libgcc's function; `caller` lives until the call returns.
    unsafe { next(pass_on, (&raw mut caller).cast()) }
}

/// Passes a frame on to the caller's function, unless it is one of hooks or of this library.
///
/// # Safety
/// Must be called only by [`_Unwind_Backtrace`].
unsafe extern "C-unwind" fn pass_on(context: *mut c_void, caller: *mut c_void) -> c_int {
    // SAFETY: the pointer is the one to `Caller` that `own_unwind` passed.
    let caller = unsafe { &mut *caller.cast::<Caller>() };
    // SAFETY: the unwinder's own context and function.
    let address = unsafe { (caller.get_ip)(context) };
    caller.is_reached |= address == caller.returns_to;
    if !caller.is_reached || dimmer_hook::is_stub(address) {
        return 0;
    }
    // SAFETY: the caller's function, with the unwinder's context and the caller's argument.
    unsafe { (caller.step)(context, caller.argument) }
}
