//! Threads that leave for a dedicated core and come home, for hooks that move calls.
//!
//! A thread that is away is another one to the kernel. So before the functions of the C library by which a program asks the kernel
//! something of its own thread, or has it changed, or starts others from it, the thread comes home; what is left of the moved call
//! runs at home. Likewise before jumps out of it. Programs that make the system calls themselves get past this.

use std::arch::naked_asm;
use std::ffi::{c_int, c_long, c_void};
use std::panic::catch_unwind;

use dimmer_hook::{Mover, come_home};

use crate::next::Next;

/// How hooks move calls.
pub(crate) const MOVER: Mover = Mover { leave, come_home: arrive };

extern "C" fn leave() -> bool {
    let _errno = KeepErrno::new();
    catch_unwind(dimmer_runtime::leave_home).unwrap_or(false)
}

extern "C" fn arrive() {
    let _errno = KeepErrno::new();
    let _ = catch_unwind(dimmer_runtime::come_home);
}

/// Puts `errno` back when it is dropped: the program's own calls are not to show in it.
struct KeepErrno {
    place: *mut i32,
    number: i32,
}

impl KeepErrno {
    fn new() -> Self {
        // SAFETY: needs nothing.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own variable.
        Self { place, number: unsafe { *place } }
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: the thread's own variable.
        unsafe { *self.place = self.number };
    }
}

/// Brings the calling thread home; where the function goes on.
extern "C" fn come_home_before(next: &Next) -> *mut c_void {
    come_home();
    let next = next.get();
    // A C library that is older than the function: a program that looks for it finds this one.
    if next.is_null() { lacks as *mut c_void } else { next }
}

/// As the C library answers for a system call that the kernel lacks.
extern "C" fn lacks() -> c_long {
    fails(libc::ENOSYS)
}

extern "C" fn fails(why: c_int) -> c_long {
    // SAFETY: needs nothing.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own variable.
    unsafe { *errno = why };
    -1
}

/// Functions that go on in the C library's of the same name, once the thread is at home, with whatever arguments they have.
macro_rules! at_home {
    ($($name:ident)*) => {
        mod nexts {
            use std::ffi::CStr;

            use crate::next::Next;

            const fn named(name: &'static str) -> Next {
                match CStr::from_bytes_with_nul(name.as_bytes()) {
                    Ok(name) => Next::new(name),
                    Err(_) => Next::new(c""),
                }
            }

            $(
                #[expect(non_upper_case_globals, reason = "called as the function is")]
                pub(super) static $name: Next = named(concat!(stringify!($name), "\0"));
            )*
        }

        /// Looks where the functions go on, before anybody calls them: the loader's lock, which that takes, may be held for as long as
        /// a library's constructor waits for a thread that calls one.
        pub(crate) fn find_next() {
            for next in [$(&nexts::$name),*] {
                next.get();
            }
        }

        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    "lea rdi, [rip + {next}]",
                    "call {come_home}",
                    "mov r11, rax",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp r11",
                    next = sym nexts::$name,
                    come_home = sym come_home_before,
                )
            }
        )*
    };
}

at_home! {
    // They leave calls without returning.
    longjmp _longjmp siglongjmp __longjmp_chk setcontext swapcontext
    // They start threads and programs, which inherit where they may run and which signals are blocked.
    pthread_create clone fork _Fork vfork posix_spawn posix_spawnp system popen
    execve execv execvp execvpe execl execlp execle fexecve execveat
    // They are about the thread.
    gettid raise sched_getcpu sched_getaffinity sched_setaffinity sched_setscheduler sched_setparam setpriority getpriority
    sigaltstack sigsuspend sigpending prctl unshare setns
}
