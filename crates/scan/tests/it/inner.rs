//! Entries inside functions, which other functions jump to.

use std::collections::BTreeSet;

use dimmer_processor::class::InstructionClass;
use dimmer_scan::{Entry, Function, Leader, Unhookable, scan, scan_wide};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use crate::elf::{CODE, Library, assemble};

/// Offset of the functions that follow the one under test.
const NEXT: u64 = 0x80;

/// The code before an entry: eight bytes of wide instructions.
fn begin(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.vpxor(ymm0, ymm0, ymm0)?;
    a.vpxor(ymm1, ymm1, ymm1)
}

/// The code after it: instructions of 3, 3, and 1 bytes. The second sets all flags.
fn end(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, rbx)?;
    a.add(rax, rcx)?;
    a.ret()
}

/// A function with a frame, and one that jumps to each of these offsets in it.
fn library(
    write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    jumps: &[u64],
) -> Library {
    let mut code = assemble(write);
    let length = u32::try_from(code.len()).expect("short");
    code.resize(usize::try_from(NEXT).expect("short"), 0xcc);
    code.extend(assemble(|a| {
        // Assembled as if it were at the start.
        jumps.iter().try_for_each(|to| a.jne((CODE + to).wrapping_sub(NEXT)))?;
        a.ret()
    }));
    let rest = u32::try_from(code.len()).expect("short") - 0x80;
    Library::new(code).frame(0, length).frame(NEXT, rest)
}

fn entries(library: &Library) -> Vec<(u32, Result<u8, Unhookable>)> {
    let scan = scan(&library.bytes()).expect("a sound file");
    let function = scan.at(CODE).expect("a function at the beginning");
    function.entries.iter().map(|Entry { offset, hook, .. }| (*offset, *hook)).collect()
}

#[track_caller]
fn check(library: &Library, expected: Result<u8, Unhookable>) {
    assert_eq!(entries(library), [(8, expected)]);
}

const ENTERED: Result<u8, Unhookable> = Err(Unhookable::Entered { offset: 0 });

#[test]
fn only_way_into_a_function_can_be_hooked() {
    let plain = || {
        library(
            |a| {
                begin(a)?;
                end(a)
            },
            &[8],
        )
    };
    check(&plain(), Ok(6));
    // If the function also starts elsewhere, calls from there would count twice.
    check(&plain().function("one", 0, 15), ENTERED);
    check(&plain().relative(0x9000, 0), ENTERED);
    let called = library(
        |a| {
            begin(a)?;
            end(a)
        },
        &[0, 8],
    );
    check(&called, ENTERED);
    check(&plain().soname("libc.so.6"), Err(Unhookable::MemoryFunction));
}

#[test]
fn place_that_only_others_lead_to_can_be_hooked() {
    let apart = library(
        |a| {
            a.vpxor(ymm0, ymm0, ymm0)?;
            a.nop()?;
            a.nop()?;
            a.ret()?;
            // Execution does not run into padding.
            a.nop()?;
            end(a)
        },
        &[8],
    );
    check(&apart.function("one", 0, 15), Ok(6));
}

#[test]
fn functions_that_are_not_wide_have_no_entries() {
    let narrow = library(
        |a| {
            (0..8).try_for_each(|_| a.nop())?;
            end(a)
        },
        &[8],
    );
    assert_eq!(entries(&narrow), []);
}

#[test]
fn loop_to_the_entry_is_refused() {
    let looping = library(
        |a| {
            let mut again = a.create_label();
            begin(a)?;
            a.set_label(&mut again)?;
            a.mov(rax, rbx)?;
            a.add(rax, rcx)?;
            a.jne(again)?;
            a.ret()
        },
        &[8],
    );
    check(&looping, ENTERED);
}

#[test]
fn coming_back_by_way_of_another_function_is_refused() {
    let back = |before: bool| {
        library(
            |a| {
                a.vpxor(ymm0, ymm0, ymm0)?;
                if before {
                    a.jne(CODE + NEXT)?;
                    (0..6).try_for_each(|_| a.nop())?;
                } else {
                    begin(a)?;
                }
                a.mov(rax, rbx)?;
                a.add(rax, rcx)?;
                if !before {
                    a.jne(CODE + NEXT)?;
                }
                a.ret()
            },
            &[12],
        )
    };
    assert_eq!(entries(&back(false)), [(12, ENTERED)]);
    // No code runs before the only way in.
    assert_eq!(entries(&back(true)), [(12, Ok(6))]);
    assert_eq!(entries(&back(true).function("one", 0, 19)), [(12, ENTERED)]);
}

#[test]
fn stack_must_be_as_a_call_leaves_it() {
    let plain = |a: &mut CodeAssembler| {
        begin(a)?;
        end(a)
    };
    let refused = Err(Unhookable::NotCalled);
    let code = library(plain, &[8]);
    check(&code, Ok(6));
    let mut deeper = assemble(plain);
    deeper.resize(0x80, 0xcc);
    // `jmp` to 8.
    deeper.extend([0xeb, 0x86]);
    let with = |depth: u8, then: (u8, u8)| {
        let library = Library::new(deeper.clone()).part(0, 15, depth).then(then.0, then.1);
        library.frame(NEXT, 2)
    };
    check(&with(8, (9, 16)), Ok(6));
    check(&with(8, (8, 16)), refused);
    check(&with(16, (8, 8)), Ok(6));
    check(&with(16, (9, 8)), refused);
    let without = Library::new(deeper.clone()).function("one", 0, 15).function("two", NEXT, 2);
    check(&without, refused);
}

#[test]
fn memory_below_the_stack_pointer_is_refused() {
    let with = |write: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        library(
            |a| {
                begin(a)?;
                a.mov(rax, rbx)?;
                a.add(rax, rcx)?;
                write(a)?;
                a.ret()
            },
            &[8],
        )
    };
    let refused = Err(Unhookable::BelowStack { offset: 14 });
    check(&with(|a| a.mov(qword_ptr(rsp - 8), rax)), refused);
    check(&with(|a| a.vmovdqu(ymm0, ymmword_ptr(rsp + rax * 2 - 64))), refused);
    check(&with(|a| a.lea(r11, qword_ptr(rsp - 8))), refused);
    check(&with(|a| a.lea(rsp, qword_ptr(rsp - 8))), Ok(6));
    check(&with(|a| a.mov(qword_ptr(rsp + 8), rax)), Ok(6));
}

#[test]
fn flags_that_are_live_at_the_entry_are_kept() {
    let with = |write: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        library(
            |a| {
                begin(a)?;
                write(a)?;
                a.mov(rax, rbx)?;
                a.mov(rcx, rdx)?;
                a.ret()
            },
            &[8],
        )
    };
    let refused = Err(Unhookable::TakesFlags);
    check(&with(|a| a.adc(rax, rcx)), refused);
    // `inc` leaves the carry flag alone.
    check(
        &with(|a| {
            a.inc(rax)?;
            a.adc(rax, rcx)
        }),
        refused,
    );
    check(&with(|a| a.jne(CODE + 0x300)), refused);
    check(
        &with(|a| {
            a.cmp(rax, rcx)?;
            a.adc(rax, rcx)
        }),
        Ok(6),
    );
    // No code reads flags until the return.
    check(&with(|a| a.vpxor(ymm0, ymm0, ymm0)), Ok(7));
}

#[test]
fn displaced_instructions_are_as_at_the_begin_of_functions() {
    let with = |jumps: &[u64], write: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        library(
            |a| {
                begin(a)?;
                write(a)
            },
            jumps,
        )
    };
    check(&with(&[8], |a| a.ret()), Err(Unhookable::TooShort { bytes: 1 }));
    let call = with(&[8], |a| {
        a.mov(rax, rbx)?;
        a.call(CODE + NEXT)?;
        a.ret()
    });
    check(&call, Err(Unhookable::Calls { offset: 3 }));
    let call = with(&[8], |a| {
        a.mov(rax, rbx)?;
        a.call(rax)?;
        a.ret()
    });
    check(&call, Err(Unhookable::Calls { offset: 3 }));
    let relocated = with(&[8], end).relative(CODE + 10, 0x100);
    check(&relocated, Err(Unhookable::Relocated { offset: 2 }));
    let two = entries(&with(&[8, 11], end));
    assert_eq!(two[0], (8, Err(Unhookable::Entered { offset: 3 })));
    // Into the middle of an instruction.
    assert_eq!(entries(&with(&[9], end)), [(9, ENTERED)]);
    let landing = with(&[8], |a| {
        a.endbr64()?;
        end(a)
    });
    check(&landing, Ok(10));
}

/// A wide function whose place at byte 8 its own start leads to, then `own`, and one that begins
/// with `first` and then leads to that place as `lead` does.
fn led(
    own: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    first: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    lead: impl FnOnce(&mut CodeAssembler, u64) -> Result<(), IcedError>,
) -> Function {
    let mut code = assemble(|a| {
        begin(a)?;
        own(a)?;
        end(a)
    });
    let length = code.len() as u64;
    code.resize(usize::try_from(NEXT).expect("short"), 0xcc);
    code.extend(assemble(|a| {
        first(a)?;
        a.add(rax, rcx)?;
        a.add(rax, rdx)?;
        // Assembled as if it were at the start.
        lead(a, (CODE + 8).wrapping_sub(NEXT))?;
        a.ret()
    }));
    let rest = u32::try_from(code.len()).expect("short") - 0x80;
    let library =
        Library::new(code).function("one", 0, length).function("leader", NEXT, rest.into());
    let bytes = library.frame(0, u32::try_from(length).expect("short")).frame(NEXT, rest).bytes();
    let all = scan(&bytes).expect("a sound file");
    let function = all.at(CODE).expect("a function at the beginning").clone();
    let wide = scan_wide(&bytes, &BTreeSet::from([InstructionClass::Light256])).expect("a file");
    assert_eq!(wide[0].leaders, function.leaders, "the quick scan finds other leaders");
    function
}

fn nothing(_: &mut CodeAssembler) -> Result<(), IcedError> {
    Ok(())
}

fn jump(a: &mut CodeAssembler, to: u64) -> Result<(), IcedError> {
    a.jne(to)
}

#[test]
fn functions_that_jump_to_a_place_without_a_hook_are_found() {
    let leader = |hook| [Leader { start: CODE + NEXT, name: Some("leader".to_owned()), hook }];
    let function = led(nothing, nothing, jump);
    assert_eq!(function.leaders, leader(Ok(6)));
    assert_eq!(function.hookable_leaders().collect::<Vec<_>>(), [(CODE + NEXT, 6)]);
    assert!(!function.is_entered_unseen(|_| false));
    // If no hook can be there either, calls come in unseen, unless that function is reported.
    let function = led(nothing, |a| a.adc(rax, rbx), jump);
    assert_eq!(function.leaders, leader(Err(Unhookable::TakesFlags)));
    assert!(function.is_entered_unseen(|_| false));
    assert!(!function.is_entered_unseen(|start| start == CODE + NEXT));
    // The slow checks run for it as for wide functions.
    let function = led(nothing, |a| a.mov(rax, qword_ptr(rsp)), jump);
    let reason = Unhookable::UsesReturnAddress { at: CODE + NEXT };
    assert_eq!(function.leaders, leader(Err(reason)));
}

#[test]
fn own_part_of_a_function_is_no_leader() {
    let function = led(|a| a.jne(CODE + NEXT), nothing, jump);
    assert_eq!(function.leaders, []);
    assert!(!function.is_entered_unseen(|_| false));
}

#[test]
fn place_that_is_called_and_has_no_hook_is_entered_unseen() {
    let function = led(nothing, nothing, |a, to| a.call(to));
    assert_eq!(function.leaders, []);
    assert!(function.is_entered_unseen(|_| true));
}
