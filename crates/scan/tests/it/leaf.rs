//! Which functions can run on another thread's stack, and what they take and return.

use dimmer_scan::{Code, Leaf, Leaves, NotLeaf, Width, scan};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use crate::elf::{CODE, Library, assemble};

const RAX: u16 = 1 << 0;
const RCX: u16 = 1 << 1;
const RDX: u16 = 1 << 2;
const RSI: u16 = 1 << 6;
const RDI: u16 = 1 << 7;
const R8: u16 = 1 << 8;

const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;
const MASKS: u64 = 1 << 5;
const UPPER_256: u64 = 1 << 6;
const UPPER_16: u64 = 1 << 7;

fn analysed(library: &Library, entry: u64) -> Result<Leaf, NotLeaf> {
    let bytes = library.bytes();
    let scan = scan(&bytes).expect("a sound file");
    let code = Code::read(&bytes).expect("a sound file");
    Leaves::read(&bytes, &code, &scan).expect("a sound file").at(CODE + entry)
}

/// A function that other files may call.
#[track_caller]
fn leaf(write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Result<Leaf, NotLeaf> {
    analysed(&Library::whole(assemble(write)), 0)
}

/// Checks what it reads, and that it reads no vectors.
#[track_caller]
fn reads(general: u16, write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) {
    let found = leaf(write).expect("a leaf function");
    assert_eq!(found.reads_general, general, "{found:x?}");
    assert_eq!(found.reads_vectors, 0, "{found:x?}");
}

/// Checks what it reads of vectors.
#[track_caller]
fn reads_vectors(components: u64, write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) {
    let found = leaf(write).expect("a leaf function");
    assert_eq!(found.reads_vectors, components, "{found:x?}");
}

/// Checks why it is not a leaf function.
#[track_caller]
fn refused(expected: NotLeaf, write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) {
    let found = leaf(write);
    assert_eq!(found, Err(expected));
    assert!(!expected.to_string().is_empty());
}

/// The address `offset` bytes after the start.
fn at(offset: u64) -> u64 {
    CODE + offset
}

#[test]
fn arguments_and_results_are_those_of_the_registers() {
    reads(RDI | RSI, |a| {
        a.mov(eax, dword_ptr(rdi))?;
        a.add(eax, esi)?;
        a.ret()
    });
    let found = leaf(|a| {
        a.lea(rax, ptr(rdi + 8 * rsi))?;
        a.mov(edx, 1)?;
        a.ret()
    });
    let expected = Leaf {
        reads_general: RDI | RSI,
        reads_vectors: 0,
        returns_general: RAX | RDX,
        returns_vectors: None,
    };
    assert_eq!(found, Ok(expected));
}

#[test]
fn what_is_written_first_is_not_read() {
    reads(RDI, |a| {
        a.xor(eax, eax)?;
        a.sub(ecx, ecx)?;
        a.mov(edx, 7)?;
        a.add(rcx, rdx)?;
        a.mov(ptr(rdi), rcx)?;
        a.ret()
    });
    // The upper bytes stay as they were.
    reads(RCX, |a| {
        a.mov(cl, 1)?;
        a.mov(rax, rcx)?;
        a.ret()
    });
    // Written on one path only.
    reads(RDI | RCX, |a| {
        let mut over = a.create_label();
        a.test(rdi, rdi)?;
        a.je(over)?;
        a.mov(rcx, 1_u64)?;
        a.set_label(&mut over)?;
        a.mov(rax, rcx)?;
        a.ret()
    });
    reads(RDI | RSI, |a| {
        a.xor(eax, eax)?;
        a.test(rdi, rdi)?;
        a.cmovne(rax, rsi)?;
        a.ret()
    });
}

#[test]
fn what_comes_back_on_one_way_alone_has_to_go_along() {
    reads(RDI | RAX, |a| {
        let mut over = a.create_label();
        a.test(rdi, rdi)?;
        a.je(over)?;
        a.mov(eax, 1)?;
        a.ret()?;
        a.set_label(&mut over)?;
        a.ret()
    });
}

#[test]
fn registers_that_are_saved_and_restored_are_not_read() {
    reads(RDI, |a| {
        a.push(rbx)?;
        a.push(r15)?;
        a.sub(rsp, 24)?;
        a.mov(rbx, rdi)?;
        a.mov(ptr(rsp + 8), rbp)?;
        a.mov(ebp, dword_ptr(rbx))?;
        a.xor(r15d, r15d)?;
        a.mov(rbp, ptr(rsp + 8))?;
        a.add(rsp, 24)?;
        a.pop(r15)?;
        a.pop(rbx)?;
        a.ret()
    });
    reads(0, |a| {
        a.push(rbp)?;
        a.mov(rbp, rsp)?;
        a.sub(rsp, 64)?;
        a.leave()?;
        a.ret()
    });
}

/// As in hand-written assembly: the stack pointer is rounded down, and its old value is kept in a
/// register or on the stack.
#[test]
fn stack_pointers_that_are_rounded_are_followed() {
    reads(RDI, |a| {
        a.mov(r9, rsp)?;
        a.sub(rsp, 72)?;
        a.and(rsp, -64)?;
        a.vpxor(ymm0, ymm0, ymm0)?;
        a.vmovdqa(ymmword_ptr(rsp + 32), ymm0)?;
        a.mov(eax, dword_ptr(rdi))?;
        a.vzeroupper()?;
        a.lea(rsp, ptr(r9))?;
        a.ret()
    });
    reads(RDI, |a| {
        a.mov(rax, rsp)?;
        a.push(rbx)?;
        a.push(r12)?;
        a.sub(rsp, 128)?;
        a.and(rsp, -256)?;
        a.mov(ptr(rsp + 64), rax)?;
        a.mov(rbx, rdi)?;
        a.mov(r12, ptr(rbx))?;
        a.mov(rsi, ptr(rsp + 64))?;
        a.mov(r12, ptr(rsi - 16))?;
        a.mov(rbx, ptr(rsi - 8))?;
        a.lea(rsp, ptr(rsi))?;
        a.ret()
    });
    // The rounded stack may overlap what was saved, unless there is room between them.
    let write = |room: i32| {
        move |a: &mut CodeAssembler| {
            a.mov(rax, rsp)?;
            a.push(rbx)?;
            a.sub(rsp, room)?;
            a.and(rsp, -64)?;
            a.mov(qword_ptr(rsp + 8), 0)?;
            a.mov(rbx, ptr(rax - 8))?;
            a.mov(rsp, rax)?;
            a.ret()
        }
    };
    assert!(leaf(write(16)).is_ok());
    assert_eq!(leaf(write(8)), Err(NotLeaf::NotRestored { at: at(28), register: 3 }));
}

#[test]
fn arrays_of_its_own_are_used_by_index_and_pointer() {
    reads(RDI | RSI, |a| {
        let mut again = a.create_label();
        a.sub(rsp, 128)?;
        a.lea(rcx, ptr(rsp + 32))?;
        a.set_label(&mut again)?;
        a.mov(rax, ptr(rdi + rsi))?;
        a.mov(ptr(rcx), rax)?;
        a.mov(rdx, ptr(rsp + rsi * 8))?;
        a.add(rcx, 8)?;
        a.dec(rsi)?;
        a.jne(again)?;
        a.add(rsp, 128)?;
        a.ret()
    });
    reads(0, |a| {
        a.sub(rsp, 128)?;
        a.lea(rdi, ptr(rsp))?;
        a.mov(ecx, 16)?;
        a.xor(eax, eax)?;
        a.rep().stosq()?;
        a.add(rsp, 128)?;
        a.ret()
    });
    refused(NotLeaf::StackUnknown { at: at(5) }, |a| {
        a.lea(rsi, ptr(rsp + 8))?;
        a.movsb()?;
        a.ret()
    });
    // A word is copied on the stack.
    reads(0, |a| {
        a.push(rbx)?;
        a.sub(rsp, 16)?;
        a.push(qword_ptr(rsp + 16))?;
        a.xor(ebx, ebx)?;
        a.pop(rbx)?;
        a.add(rsp, 24)?;
        a.ret()
    });
    // The array may be an argument.
    refused(NotLeaf::StackUnknown { at: at(0) }, |a| {
        a.mov(rax, ptr(rsp + rdi * 8))?;
        a.ret()
    });
    refused(NotLeaf::StackUnknown { at: at(5) }, |a| {
        a.lea(rcx, ptr(rsp + rdi * 8 + 8))?;
        a.mov(rax, ptr(rcx))?;
        a.ret()
    });
}

#[test]
fn what_lies_at_the_return_address_or_above_is_not_used() {
    refused(NotLeaf::StackArguments { at: at(0) }, |a| {
        a.mov(rax, ptr(rsp + 8))?;
        a.ret()
    });
    refused(NotLeaf::StackArguments { at: at(0) }, |a| {
        a.mov(rax, ptr(rsp))?;
        a.ret()
    });
    refused(NotLeaf::StackArguments { at: at(4) }, |a| {
        a.sub(rsp, 16)?;
        a.movups(xmm0, ptr(rsp + 8))?;
        a.add(rsp, 16)?;
        a.ret()
    });
    refused(NotLeaf::StackArguments { at: at(4) }, |a| {
        a.push(rbp)?;
        a.mov(rbp, rsp)?;
        a.mov(eax, dword_ptr(rbp + 16))?;
        a.pop(rbp)?;
        a.ret()
    });
    refused(NotLeaf::StackArguments { at: at(7) }, |a| {
        a.mov(rax, rsp)?;
        a.and(rsp, -64)?;
        a.mov(ptr(rsp), rax)?;
        a.mov(rsp, rax)?;
        a.ret()
    });
}

#[test]
fn stack_pointers_that_get_lost_are_refused() {
    refused(NotLeaf::StackPointer { at: at(0) }, |a| {
        a.sub(rsp, rdi)?;
        a.add(rsp, rdi)?;
        a.ret()
    });
    refused(NotLeaf::StackPointer { at: at(1) }, |a| {
        a.push(rdi)?;
        a.ret()
    });
    refused(NotLeaf::StackPointer { at: at(0) }, |a| {
        a.mov(rsp, rdi)?;
        a.ret()
    });
    refused(NotLeaf::TooDeep { at: at(0) }, |a| {
        a.sub(rsp, 1 << 20)?;
        a.add(rsp, 1 << 20)?;
        a.ret()
    });
}

#[test]
fn addresses_of_the_stack_stay_there() {
    refused(NotLeaf::StackAddress { at: at(5) }, |a| {
        a.lea(rax, ptr(rsp - 8))?;
        a.mov(ptr(rdi), rax)?;
        a.ret()
    });
    refused(NotLeaf::StackAddress { at: at(0) }, |a| {
        a.mov(ptr(rdi), rsp)?;
        a.ret()
    });
    refused(NotLeaf::StackAddress { at: at(0) }, |a| {
        a.movq(xmm0, rsp)?;
        a.ret()
    });
}

#[test]
fn registers_that_are_not_restored_are_refused() {
    refused(NotLeaf::NotRestored { at: at(2), register: 3 }, |a| {
        a.mov(ebx, edi)?;
        a.ret()
    });
    refused(NotLeaf::NotRestored { at: at(15), register: 12 }, |a| {
        a.push(r12)?;
        a.xor(r12d, r12d)?;
        a.mov(qword_ptr(rsp), 0)?;
        a.pop(r12)?;
        a.ret()
    });
}

#[test]
fn what_depends_on_the_thread_is_refused() {
    refused(NotLeaf::Calls { at: at(0) }, |a| {
        a.call(rax)?;
        a.ret()
    });
    refused(NotLeaf::Jumps { at: at(0) }, |a| a.jmp(rax));
    refused(NotLeaf::System { at: at(0) }, |a| {
        a.syscall()?;
        a.ret()
    });
    refused(NotLeaf::ThreadStorage { at: at(0) }, |a| {
        a.mov(rax, qword_ptr(0x28).fs())?;
        a.ret()
    });
    refused(NotLeaf::ThisProcessor { at: at(0) }, |a| {
        a.rdpid(rax)?;
        a.ret()
    });
    refused(NotLeaf::ThisProcessor { at: at(0) }, |a| {
        a.rdtscp()?;
        a.ret()
    });
    for write in [
        CodeAssembler::std,
        CodeAssembler::fninit,
        CodeAssembler::emms,
        CodeAssembler::pushfq,
        CodeAssembler::xgetbv,
        CodeAssembler::rdpkru,
    ] {
        refused(NotLeaf::Control { at: at(0) }, |a| {
            write(a)?;
            a.ret()
        });
    }
    refused(NotLeaf::Control { at: at(0) }, |a| {
        a.ldmxcsr(ptr(rdi))?;
        a.ret()
    });
    refused(NotLeaf::Control { at: at(0) }, |a| {
        a.mov(es, edi)?;
        a.ret()
    });
    refused(NotLeaf::TakesFlags, |a| {
        a.setc(al)?;
        a.ret()
    });
    refused(NotLeaf::NoCode { at: at(1) }, CodeAssembler::nop);
}

#[test]
fn vectors_are_read_at_the_width_that_is_used() {
    reads_vectors(SSE, |a| {
        a.addps(xmm0, xmm1)?;
        a.ret()
    });
    reads_vectors(SSE | AVX, |a| {
        a.vaddps(ymm0, ymm0, ymm1)?;
        a.ret()
    });
    reads_vectors(SSE | AVX | UPPER_256, |a| {
        a.vaddps(zmm0, zmm0, zmm1)?;
        a.ret()
    });
    reads_vectors(SSE | AVX | UPPER_256 | UPPER_16 | MASKS, |a| {
        a.vaddps(zmm0.k1(), zmm3, zmm17)?;
        a.ret()
    });
    // The upper half is passed through.
    reads_vectors(AVX, |a| {
        a.movdqu(xmm0, ptr(rdi))?;
        a.vmovdqu(ptr(rsi), ymm0)?;
        a.ret()
    });
    reads_vectors(0, |a| {
        a.vpcmpeqd(ymm1, ymm1, ymm1)?;
        a.vpternlogd(zmm2, zmm2, zmm2, 0xff)?;
        a.kxnorw(k1, k1, k1)?;
        a.vzeroupper()?;
        a.vmovdqu(xmm0, ptr(rdi))?;
        a.vmovdqu(ptr(rsi), ymm0)?;
        a.ret()
    });
}

#[test]
fn vectors_are_returned_at_the_width_that_is_written() {
    let returns = |write: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        leaf(|a| {
            write(a)?;
            a.ret()
        })
        .expect("a leaf function")
        .returns_vectors
    };
    assert_eq!(returns(|a| a.xor(eax, eax)), None);
    assert_eq!(returns(|a| a.pxor(xmm7, xmm7)), None);
    assert_eq!(returns(|a| a.pxor(xmm1, xmm1)), Some(Width::Bits128));
    assert_eq!(returns(|a| a.vpxor(xmm0, xmm0, xmm0)), Some(Width::Bits256));
    assert_eq!(returns(|a| a.vpxord(zmm0, zmm0, zmm0)), Some(Width::Bits512));
}

/// A function of 32 bytes that other files cannot name, and one after it that calls it and goes on
/// with `rest`.
fn helper(
    body: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    rest: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Library {
    let mut code = assemble(body);
    code.resize(32, 0xcc);
    code.extend(assemble(|a| {
        a.nop()?;
        a.call(CODE - 32)?;
        rest(a)
    }));
    let size = code.len() as u64 - 32;
    Library::new(code).frame(0, 32).function("caller", 32, size)
}

#[test]
fn what_callers_count_on_decides_what_is_returned() {
    let body = |a: &mut CodeAssembler| {
        a.lea(rax, ptr(rdi + rsi))?;
        a.mov(r8, rdi)?;
        a.vpxor(ymm3, ymm3, ymm3)?;
        a.ret()
    };
    let after =
        |rest: fn(&mut CodeAssembler) -> Result<(), IcedError>| analysed(&helper(body, rest), 0);
    let returns = |general| {
        Ok(Leaf {
            reads_general: RDI | RSI,
            reads_vectors: 0,
            returns_general: general,
            returns_vectors: None,
        })
    };
    // The caller may return what it got.
    assert_eq!(after(CodeAssembler::ret), returns(RAX));
    // It may read the lowest byte alone: of a `bool` or a `char`.
    for reads_a_byte in [
        |a: &mut CodeAssembler| a.movzx(eax, al),
        |a: &mut CodeAssembler| a.mov(byte_ptr(rbx), al),
        |a: &mut CodeAssembler| a.test(al, al),
    ] {
        let of = helper(body, |a| {
            reads_a_byte(a)?;
            a.xor(eax, eax)?;
            a.ret()
        });
        assert_eq!(analysed(&of, 0), returns(RAX));
    }
    let nothing = after(|a| {
        a.xor(eax, eax)?;
        a.ret()
    });
    assert_eq!(nothing, returns(0));
    let counts_on_r8 = after(|a| {
        a.add(rax, r8)?;
        a.ret()
    });
    assert_eq!(counts_on_r8, Err(NotLeaf::Expected));
    let counts_on_a_vector = after(|a| {
        a.vmovdqu(ptr(rdi), ymm3)?;
        a.ret()
    });
    assert_eq!(counts_on_a_vector, Err(NotLeaf::Expected));
    let counts_on_flags = after(|a| {
        a.setc(al)?;
        a.ret()
    });
    assert_eq!(counts_on_flags, returns(RAX));
    // No code relies on registers after a call of another file's function. But that may get the
    // result as an argument: `al` is the number of vectors, if it takes any number of arguments.
    let after_a_call = after(|a| {
        a.call(qword_ptr(rbx))?;
        a.add(rax, r8)?;
        a.ret()
    });
    assert_eq!(after_a_call, returns(RAX));
}

/// As in `sin(f(x))` and `printf("%f", f(x))`.
#[test]
fn a_result_may_be_passed_on_to_a_function_of_another_file() {
    let body = |a: &mut CodeAssembler| {
        a.lea(rdx, ptr(rdi + rsi))?;
        a.vaddsd(xmm0, xmm1, xmm2)?;
        a.ret()
    };
    let after = |rest: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        let leaf = analysed(&helper(body, rest), 0).expect("a leaf function");
        (leaf.returns_general, leaf.returns_vectors.is_some())
    };
    let passed_on = [
        |a: &mut CodeAssembler| a.call(qword_ptr(rbx)),
        |a: &mut CodeAssembler| a.jmp(qword_ptr(0x2000)),
    ];
    for pass_on in passed_on {
        assert_eq!(after(pass_on), (RDX, true));
    }
    let overwritten = after(|a| {
        a.xor(edx, edx)?;
        a.vxorps(ymm0, ymm0, ymm0)?;
        a.call(qword_ptr(rbx))?;
        a.xor(eax, eax)?;
        a.ret()
    });
    assert_eq!(overwritten, (0, false));
}

#[test]
fn jumps_between_functions_are_followed() {
    // The first function ends in the second.
    let mut code = assemble(|a| {
        a.mov(ecx, edi)?;
        a.jmp(CODE + 32)
    });
    code.resize(32, 0xcc);
    code.extend(assemble(|a| {
        a.add(rcx, r8)?;
        a.mov(rax, rcx)?;
        a.ret()
    }));
    let library = Library::new(code).function("first", 0, 7).frame(32, 7);
    let found = analysed(&library, 0).expect("a leaf function");
    assert_eq!((found.reads_general, found.returns_general), (RDI | R8, RAX));
    // It returns to the callers of the first, so it must return what they rely on.
    let found = analysed(&library, 32).expect("a leaf function");
    assert_eq!((found.reads_general, found.returns_general), (RCX | R8, RAX));
}

#[test]
fn what_nobody_leads_to_is_refused() {
    let library = Library::new(assemble(CodeAssembler::ret)).frame(0, 1);
    assert_eq!(analysed(&library, 0), Err(NotLeaf::Unreached));
    let by_pointer = Library::new(assemble(CodeAssembler::ret)).frame(0, 1).packed(0);
    assert!(analysed(&by_pointer, 0).is_ok());
}
