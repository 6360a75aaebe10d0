//! Entries are hooked only where the stack is as a call leaves it.

use dimmer_scan::{Function, Unhookable, scan};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use crate::elf::{CODE, Library, assemble};
use crate::wide;

/// Offset of the function under test, unless it is the first.
const PART: u64 = 0x80;

type Write<'a> = &'a dyn Fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// A first function, and the code at [`PART`].
fn two(first: Write<'_>, part: Write<'_>) -> Vec<u8> {
    let mut code = assemble(first);
    code.resize(usize::try_from(PART).expect("short"), 0xcc);
    // Assembled as if it were at the start, so it may use only relative addresses.
    code.extend(assemble(part));
    code
}

#[track_caller]
fn check_at(library: &Library, offset: u64, expected: Result<u8, &str>) {
    let bytes = library.bytes();
    let mut found = scan(&bytes).expect("a sound file");
    found.check_narrow(&bytes).expect("a sound file");
    let function = found.at(CODE + offset).expect("a function there");
    assert_eq!(function.addresses.start, CODE + offset);
    let kind = function.hook.map_err(|reason| reason.kind());
    assert_eq!(kind, expected, "{function:?}");
}

/// Wide code of more than five bytes.
fn wide(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.vpaddd(ymm0, ymm0, ymm1)?;
    a.vpaddd(ymm0, ymm0, ymm2)
}

/// The continuation of a function with a frame of 0x78 bytes, as in dav1d.
fn continuation(a: &mut CodeAssembler) -> Result<(), IcedError> {
    wide(a)?;
    a.mov(rax, qword_ptr(rsp + 0x10))?;
    a.add(rsp, 0x78)?;
    a.ret()
}

/// An ordinary function.
fn ordinary(a: &mut CodeAssembler) -> Result<(), IcedError> {
    wide(a)?;
    a.ret()
}

/// A function with a symbol that takes the address of the code at [`PART`].
fn takes_address(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.sub(rsp, 0x78)?;
    // lea rax, [rip + PART - 11]
    a.db(&[0x48, 0x8d, 0x05, 0x75, 0, 0, 0])?;
    a.jmp(rax)
}

#[test]
fn label_that_code_jumps_to_in_the_midst_of_a_frame_is_left() {
    // Even if the jump looks compiled.
    let code = two(&takes_address, &continuation);
    let library = Library::new(code.clone()).function("whole", 0, 16).frame(0, 16);
    check_at(&library, PART, Err("returns-elsewhere"));
    check_at(&Library::new(code).function("whole", 0, 16), PART, Err("returns-elsewhere"));
    // A symbol does not make it a function.
    let code = two(&takes_address, &continuation);
    let named = Library::new(code).function("whole", 0, 16).function("part", PART, 32);
    check_at(&named, PART, Err("returns-elsewhere"));
}

#[test]
fn address_that_assembly_takes_may_be_that_of_a_label_or_of_data() {
    let code = two(&takes_address, &ordinary);
    check_at(&Library::new(code.clone()).function("whole", 0, 16), PART, Err("doubtful-entry"));
    // An address that a compiler takes is that of a function.
    check_at(&Library::new(code).function("whole", 0, 16).frame(0, 16), PART, Ok(8));
}

#[test]
fn pointers_count_where_the_code_returns_to_its_caller() {
    let to = |part: Write<'_>| {
        Library::new(two(&ordinary, part)).function("one", 0, 9).relative(0x9000, PART)
    };
    check_at(&to(&ordinary), PART, Ok(8));
    // It is unknown where this ends.
    let open = |a: &mut CodeAssembler| {
        wide(a)?;
        a.jmp(rax)
    };
    check_at(&to(&open), PART, Err("doubtful-entry"));
    // A call that may not return does not count; a call of a function that returns does.
    let calls = |a: &mut CodeAssembler| {
        wide(a)?;
        a.call(CODE.wrapping_sub(PART))?;
        a.ret()
    };
    check_at(&to(&calls), PART, Ok(8));
    let unknown = |a: &mut CodeAssembler| {
        wide(a)?;
        a.call(rax)?;
        a.ret()
    };
    check_at(&to(&unknown), PART, Err("doubtful-entry"));
}

#[test]
fn jumped_to_code_is_hooked_where_it_returns_to_its_caller_and_keeps_nothing_below_the_stack() {
    let jumps = |a: &mut CodeAssembler| {
        wide(a)?;
        a.jmp(CODE + PART)
    };
    let to = |part: Write<'_>| Library::new(two(&jumps, part)).function("one", 0, 13);
    check_at(&to(&ordinary), PART, Ok(8));
    check_at(&to(&continuation), PART, Err("returns-elsewhere"));
    let below = |a: &mut CodeAssembler| {
        wide(a)?;
        a.mov(rax, qword_ptr(rsp - 8))?;
        a.ret()
    };
    check_at(&to(&below), PART, Err("below-stack"));
}

#[test]
fn what_is_called_by_a_function_with_data_below_its_stack_pointer_is_left() {
    let calls = |below: bool| {
        move |a: &mut CodeAssembler| {
            if below {
                a.mov(qword_ptr(rsp - 0x20), rax)?;
            }
            wide(a)?;
            a.call(CODE + PART)?;
            a.ret()
        }
    };
    let to = |below| Library::new(two(&calls(below), &ordinary)).function("one", 0, 32);
    check_at(&to(false), PART, Ok(8));
    check_at(&to(true), PART, Err("caller-below-stack"));
}

#[track_caller]
fn check(
    write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    expected: Result<u8, &str>,
) {
    let code = assemble(write);
    let length = u32::try_from(code.len()).expect("short");
    // Whether a symbol or a frame describes it.
    check_at(&Library::whole(code.clone()), 0, expected);
    check_at(&Library::new(code).frame(0, length), 0, expected);
}

#[test]
fn code_that_uses_its_return_address_is_left() {
    let uses = Err("uses-return-address");
    // As compilers do for `__builtin_return_address`, with a frame pointer and without.
    check(
        |a| {
            a.push(rbp)?;
            a.mov(rbp, rsp)?;
            wide(a)?;
            a.mov(rax, qword_ptr(rbp + 8))?;
            a.pop(rbp)?;
            a.ret()
        },
        uses,
    );
    check(
        |a| {
            a.sub(rsp, 0x18)?;
            wide(a)?;
            a.mov(rax, qword_ptr(rsp + 0x18))?;
            a.add(rsp, 0x18)?;
            a.ret()
        },
        uses,
    );
    // Not wide, but named by a user.
    check(
        |a| {
            a.mov(rax, qword_ptr(rsp))?;
            a.inc(rax)?;
            a.ret()
        },
        uses,
    );
    // As in thunks that return where they were called.
    check(
        |a| {
            wide(a)?;
            a.pop(rax)?;
            a.push(rax)?;
            a.ret()
        },
        uses,
    );
    // A vector store that reaches into it.
    check(
        |a| {
            a.vmovdqu(ymmword_ptr(rsp - 0x10), ymm0)?;
            a.ret()
        },
        uses,
    );
}

#[test]
fn arguments_on_the_stack_and_realigned_frames_are_as_calls_leave_them() {
    check(
        |a| {
            wide(a)?;
            a.vmovdqu(ymm0, ymmword_ptr(rsp + 8))?;
            a.ret()
        },
        Ok(8),
    );
    // GCC's realigned frame, which has a copy of the return address for debuggers.
    check(
        |a| {
            a.lea(r10, qword_ptr(rsp + 8))?;
            a.and(rsp, -32)?;
            a.push(qword_ptr(r10 - 8))?;
            a.push(rbp)?;
            a.mov(rbp, rsp)?;
            a.push(r10)?;
            wide(a)?;
            a.pop(r10)?;
            a.pop(rbp)?;
            a.lea(rsp, qword_ptr(r10 - 8))?;
            a.ret()
        },
        Ok(5),
    );
    // The stack pointer is saved on the realigned stack, as in assembly.
    check(
        |a| {
            a.mov(rax, rsp)?;
            a.and(rsp, -64)?;
            a.sub(rsp, 0x80)?;
            a.mov(qword_ptr(rsp + 0x60), rax)?;
            wide(a)?;
            a.mov(rsp, qword_ptr(rsp + 0x60))?;
            a.ret()
        },
        Ok(7),
    );
}

#[test]
fn code_that_changes_stacks_is_left() {
    // As in coroutines whose stacks are copied away and back.
    check(
        |a| {
            a.sub(rsp, 0x20)?;
            a.vmovdqu(ymmword_ptr(rsp), ymm0)?;
            a.add(rsp, rax)?;
            a.add(rsp, 0x20)?;
            a.ret()
        },
        Err("changes-stacks"),
    );
    check(
        |a| {
            a.push(rbp)?;
            a.vmovdqu(ymmword_ptr(rsi), ymm0)?;
            a.mov(qword_ptr(rdi), rsp)?;
            a.mov(rsp, qword_ptr(rsi))?;
            a.pop(rbp)?;
            a.ret()
        },
        Err("changes-stacks"),
    );
    for other in [rdi, rax] {
        check(
            |a| {
                wide(a)?;
                a.xchg(rsp, other)?;
                a.ret()
            },
            Err("changes-stacks"),
        );
    }
    // If there is nothing to change, the code skips that.
    check(
        |a| {
            let mut stays = a.create_label();
            a.sub(rsp, 0x20)?;
            a.vmovdqu(ymmword_ptr(rsp), ymm0)?;
            a.test(rax, rax)?;
            a.je(stays)?;
            a.add(rsp, rax)?;
            a.set_label(&mut stays)?;
            a.add(rsp, 0x20)?;
            a.ret()
        },
        Err("changes-stacks"),
    );
}

#[test]
fn what_calls_code_that_changes_stacks_is_left_as_it_may_return_twice() {
    let changes = |a: &mut CodeAssembler| {
        a.sub(rsp, 0x20)?;
        a.add(rsp, rax)?;
        a.add(rsp, 0x20)?;
        a.ret()
    };
    // The second calls the first, and the third jumps to the second: neither changes stacks itself.
    let leads = |a: &mut CodeAssembler| {
        wide(a)?;
        a.call(CODE.wrapping_sub(PART))?;
        a.ret()?;
        wide(a)?;
        a.jmp(CODE)?;
        wide(a)?;
        a.ret()
    };
    let library = |first: Write<'_>| {
        Library::new(two(first, &leads))
            .function("changes", 0, 16)
            .function("calls", PART, 14)
            .function("jumps", PART + 14, 10)
            .function("other", PART + 24, 9)
    };
    let named = |first: Write<'_>, name: &str| {
        let found = scan(&library(first).bytes()).expect("a sound file");
        let is_it = |function: &&Function| function.name.as_deref() == Some(name);
        let function = found.functions.iter().find(is_it).expect("a function of that name");
        function.hook.map_err(|reason| reason.kind())
    };
    assert_eq!(named(&changes, "changes"), Err("changes-stacks"));
    assert_eq!(named(&changes, "calls"), Err("may-return-twice"));
    assert_eq!(named(&changes, "jumps"), Err("may-return-twice"));
    assert_eq!(named(&changes, "other"), Ok(8));
    for name in ["changes", "calls", "jumps"] {
        assert_eq!(named(&ordinary, name), Ok(8), "{name}");
    }
    // The first is not wide.
    wide::check(&library(&changes).bytes(), &wide::WIDE);
}

#[test]
fn code_behind_a_call_that_does_not_return_is_another_function() {
    let code = two(
        &|a| {
            a.sub(rsp, 0x18)?;
            wide(a)?;
            a.call(rax)
        },
        // If it ran in the first one's frame, it would read the return address.
        &|a| {
            wide(a)?;
            a.mov(rax, qword_ptr(rsp + 0x18))?;
            a.ret()
        },
    );
    let code = code.into_iter().map(|byte| if byte == 0xcc { 0x90 } else { byte }).collect();
    let library = Library::new(code).function("one", 0, 14).function("other", PART, 14);
    check_at(&library, 0, Ok(8));
    check_at(&library, PART, Ok(8));
}

#[test]
fn reasons_name_the_instruction() {
    let code = assemble(|a| {
        wide(a)?;
        a.mov(rax, qword_ptr(rsp))?;
        a.ret()
    });
    let found = scan(&Library::whole(code).bytes()).expect("a sound file");
    let reason = found.functions[0].hook.expect_err("it uses its return address");
    assert_eq!(reason, Unhookable::UsesReturnAddress { at: CODE + 8 });
    assert_eq!(reason.to_string(), "the instruction at 0x1008 uses its return address");
}
