//! The class of one instruction, and what else the analysis of a function has to know of it.
//!
//! All of it follows from the instruction's code (its form in the manual: mnemonic, encoding, kinds of
//! operands), so one table is made at first use and classifying is one look-up. "Heavy" and "light"
//! are as [`dimmer_processor::class`] says; which mnemonics are meant by that is decided here.

use std::sync::LazyLock;

use dimmer_processor::class::InstructionClass;
use iced_x86::{Code, EncodingKind, FlowControl, Instruction, Mnemonic, OpCodeInfo};

/// The class of `instruction`; `None` where it touches neither a vector nor a tile.
///
/// The width is that of the widest vector register that the instruction's form names, which is never
/// less than what it reads or writes in memory (`vcvtpd2ps xmm, m256` is the form `xmm, ymm/m256`).
/// Arithmetic on one element (`vaddsd`), moving one element (`movd`, `vpextrq`) and 64-bit MMX are
/// scalar. Masks, `vzeroupper`, and moves of whole states (`xsave`, `fxsave`) have no class. Takes
/// nanoseconds, the first call a few milliseconds.
#[must_use]
pub fn classify(instruction: &Instruction) -> Option<InstructionClass> {
    traits_of(instruction.code()).class
}

/// What the analysis of a function has to know of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// The class, `None` for neither vector nor tile.
    pub(crate) class: Option<InstructionClass>,
    /// Whether it has the EVEX encoding.
    pub(crate) evex: bool,
    /// Whether it may write the upper half of its first operand, that being a wide register.
    pub(crate) writes_upper: bool,
    /// What it does to the flow of control, or to what the scan looks for besides.
    pub(crate) kind: Kind,
}

/// Instructions told apart by what a scan does with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing further.
    Plain,
    /// No bytes that are an instruction.
    Invalid,
    /// Fills space between code: `nop`, `int3`.
    Padding,
    /// `lea`, which may give the address of a function.
    Address,
    /// Clears the upper halves: `vzeroupper`, `vzeroall`.
    ClearUpper,
    /// A direct jump.
    Jump,
    /// A direct conditional jump, `loop` and `jrcxz` included.
    Branch,
    /// A direct call.
    Call,
    /// An indirect or far jump.
    IndirectJump,
    /// A return.
    Return,
    /// Execution does not go on: `ud2`.
    Stop,
}

static TABLE: LazyLock<Box<[Traits]>> =
    LazyLock::new(|| Code::values().map(Traits::derive).collect());

/// The table; to be fetched once for many instructions.
pub(crate) fn table() -> &'static [Traits] {
    &TABLE
}

fn traits_of(code: Code) -> &'static Traits {
    &TABLE[code as usize]
}

impl Traits {
    fn derive(code: Code) -> Self {
        let form = code.op_code();
        let mnemonic = code.mnemonic();
        let class = class_of(form, mnemonic);
        let reads_only =
            matches!(mnemonic, Mnemonic::Vptest | Mnemonic::Vtestps | Mnemonic::Vtestpd);
        Self {
            class,
            evex: form.encoding() == EncodingKind::EVEX,
            writes_upper: !reads_only
                && class.is_some_and(|class| {
                    (InstructionClass::Light256..InstructionClass::Tile).contains(&class)
                }),
            kind: kind_of(code, mnemonic),
        }
    }
}

fn kind_of(code: Code, mnemonic: Mnemonic) -> Kind {
    match mnemonic {
        Mnemonic::INVALID => return Kind::Invalid,
        Mnemonic::Nop | Mnemonic::Int3 => return Kind::Padding,
        Mnemonic::Lea => return Kind::Address,
        Mnemonic::Vzeroupper | Mnemonic::Vzeroall => return Kind::ClearUpper,
        _ => {}
    }
    match code.flow_control() {
        FlowControl::UnconditionalBranch if code.is_jmp_short_or_near() => Kind::Jump,
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => Kind::IndirectJump,
        FlowControl::ConditionalBranch => Kind::Branch,
        FlowControl::Call if code.is_call_near() => Kind::Call,
        FlowControl::Return => Kind::Return,
        FlowControl::Exception => Kind::Stop,
        _ => Kind::Plain,
    }
}

/// How wide the registers are that a form names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Width {
    Mmx,
    Xmm,
    Ymm,
    Zmm,
    Tile,
}

fn class_of(form: &OpCodeInfo, mnemonic: Mnemonic) -> Option<InstructionClass> {
    if matches!(mnemonic, Mnemonic::Ldtilecfg | Mnemonic::Sttilecfg | Mnemonic::Tilerelease) {
        return Some(InstructionClass::Tile);
    }
    let width = (0..form.op_count()).filter_map(|index| width_of_operand(form, index)).max()?;
    let name = format!("{mnemonic:?}").to_ascii_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    if width < Width::Tile && is_one_element(name) {
        return Some(InstructionClass::Scalar);
    }
    Some(match (width, is_heavy(name)) {
        (Width::Mmx, _) => InstructionClass::Scalar,
        (Width::Xmm, false) => InstructionClass::Light128,
        (Width::Xmm, true) => InstructionClass::Heavy128,
        (Width::Ymm, false) => InstructionClass::Light256,
        (Width::Ymm, true) => InstructionClass::Heavy256,
        (Width::Zmm, false) => InstructionClass::Light512,
        (Width::Zmm, true) => InstructionClass::Heavy512,
        (Width::Tile, _) => InstructionClass::Tile,
    })
}

/// By the name that the decoder's authors gave to the kind of operand: `ymm_or_mem`, `mem_vsib64z`.
fn width_of_operand(form: &OpCodeInfo, index: u32) -> Option<Width> {
    let kind = format!("{:?}", form.op_kind(index));
    let vector_index = kind.starts_with("mem_vsib").then(|| kind.chars().last()).flatten();
    if kind.starts_with("tmm") {
        Some(Width::Tile)
    } else if kind.starts_with("zmm") || vector_index == Some('z') {
        Some(Width::Zmm)
    } else if kind.starts_with("ymm") || vector_index == Some('y') {
        Some(Width::Ymm)
    } else if kind.starts_with("xmm") || vector_index == Some('x') {
        Some(Width::Xmm)
    } else {
        kind.starts_with("mm_").then_some(Width::Mmx)
    }
}

/// Whether the instruction (name without the leading `v`) works on or moves one element only.
fn is_one_element(name: &str) -> bool {
    const MOVES: [&str; 10] = [
        "movd",
        "movq",
        "movw",
        "movq2dq",
        "movdq2q",
        "pextrb",
        "pextrw",
        "pextrd",
        "pextrq",
        "extractps",
    ];
    if MOVES.contains(&name) {
        return true;
    }
    // Integer vectors of signed doublewords end like scalars: `pabsd`, `pdpwssd`, `pcompressd`.
    if name.starts_with('p') || name.starts_with("broadcast") {
        return false;
    }
    ["ss", "sd", "sh", "2si", "2usi"].iter().any(|end| name.ends_with(end))
}

/// Whether the instruction (name without the leading `v`) is heavy: floating-point arithmetic, which
/// includes converting, comparing, rounding and approximating, or integer multiplication. Tests of
/// bits (`testps`, `fpclassps`), carry-less and Galois-field products are none.
fn is_heavy(name: &str) -> bool {
    const FLOATING_POINT: [&str; 31] = [
        "add", "sub", "mul", "div", "sqrt", "rsqrt", "rcp", "max", "min", "cmp", "dpp", "dpbf16",
        "hadd", "hsub", "range", "reduce", "rndscale", "round", "scalef", "getexp", "getmant",
        "fixupimm", "cvt", "exp2", "fm", "fnm", "fcm", "4fm", "4fnm", "frcz", "bcstne",
    ];
    const INTEGER: [&str; 6] = ["pmul", "pmadd", "pdp", "p4dp", "pmac", "pmadc"];
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    // Bit fields, in spite of the name.
    !name.starts_with("pmultishift") && (begins(&FLOATING_POINT) || begins(&INTEGER))
}
