//! Golden table of instruction classes: text, bytes from the GNU assembler, and class by the
//! definition in `dimmer_processor::class`.

use dimmer_processor::class::InstructionClass::{
    self, Heavy128, Heavy256, Heavy512, Light128, Light256, Light512, Scalar, Tile,
};
use dimmer_scan::classify;
use iced_x86::{Code, Decoder, DecoderOptions, EncodingKind, Instruction};

type Row = (&'static str, &'static str, Option<InstructionClass>);

#[rustfmt::skip]
const GOLDEN: &[Row] = &[
    ("movss xmm1, xmm2", "f3 0f 10 ca", Some(Scalar)),
    ("movsd xmm1, qword [rax]", "f2 0f 10 08", Some(Scalar)),
    ("addsd xmm1, xmm2", "f2 0f 58 ca", Some(Scalar)),
    ("cvtsi2sd xmm1, rax", "f2 48 0f 2a c8", Some(Scalar)),
    ("cvttss2si eax, xmm1", "f3 0f 2c c1", Some(Scalar)),
    ("comiss xmm1, xmm2", "0f 2f ca", Some(Scalar)),
    ("movd xmm1, eax", "66 0f 6e c8", Some(Scalar)),
    ("movq rax, xmm1", "66 48 0f 7e c8", Some(Scalar)),
    ("pextrq rax, xmm1, 1", "66 48 0f 3a 16 c8 01", Some(Scalar)),
    ("sqrtsd xmm1, xmm2", "f2 0f 51 ca", Some(Scalar)),
    ("roundss xmm1, xmm2, 3", "66 0f 3a 0a ca 03", Some(Scalar)),
    ("paddb mm1, mm2", "0f fc ca", Some(Scalar)),
    ("movaps xmm1, xmm2", "0f 28 ca", Some(Light128)),
    ("movdqu xmm1, xmmword [rax]", "f3 0f 6f 08", Some(Light128)),
    ("movhps xmm1, qword [rax]", "0f 16 08", Some(Light128)),
    ("pxor xmm1, xmm2", "66 0f ef ca", Some(Light128)),
    ("paddd xmm1, xmm2", "66 0f fe ca", Some(Light128)),
    ("pshufb xmm1, xmm2", "66 0f 38 00 ca", Some(Light128)),
    ("pcmpeqb xmm1, xmm2", "66 0f 74 ca", Some(Light128)),
    ("pabsd xmm1, xmm2", "66 0f 38 1e ca", Some(Light128)),
    ("pmaxsd xmm1, xmm2", "66 0f 38 3d ca", Some(Light128)),
    ("pinsrd xmm1, eax, 1", "66 0f 3a 22 c8 01", Some(Light128)),
    ("psadbw xmm1, xmm2", "66 0f f6 ca", Some(Light128)),
    ("aesenc xmm1, xmm2", "66 0f 38 dc ca", Some(Light128)),
    ("pclmulqdq xmm1, xmm2, 1", "66 0f 3a 44 ca 01", Some(Light128)),
    ("xorps xmm1, xmm2", "0f 57 ca", Some(Light128)),
    ("insertps xmm1, xmm2, 1", "66 0f 3a 21 ca 01", Some(Light128)),
    ("pcmpistri xmm1, xmm2, 1", "66 0f 3a 63 ca 01", Some(Light128)),
    ("addps xmm1, xmm2", "0f 58 ca", Some(Heavy128)),
    ("mulpd xmm1, xmm2", "66 0f 59 ca", Some(Heavy128)),
    ("divps xmm1, xmm2", "0f 5e ca", Some(Heavy128)),
    ("cmpps xmm1, xmm2, 1", "0f c2 ca 01", Some(Heavy128)),
    ("cvtdq2ps xmm1, xmm2", "0f 5b ca", Some(Heavy128)),
    ("pmulld xmm1, xmm2", "66 0f 38 40 ca", Some(Heavy128)),
    ("pmaddwd xmm1, xmm2", "66 0f f5 ca", Some(Heavy128)),
    ("haddps xmm1, xmm2", "f2 0f 7c ca", Some(Heavy128)),
    ("dpps xmm1, xmm2, 1", "66 0f 3a 40 ca 01", Some(Heavy128)),
    ("vaddsd xmm1, xmm2, xmm3", "c5 eb 58 cb", Some(Scalar)),
    ("vfmadd231ss xmm1, xmm2, xmm3", "c4 e2 69 b9 cb", Some(Scalar)),
    ("vmovss dword [rax], xmm1", "c5 fa 11 08", Some(Scalar)),
    ("vbroadcastss xmm1, dword [rax]", "c4 e2 79 18 08", Some(Light128)),
    ("vfmadd231ps xmm1, xmm2, xmm3", "c4 e2 69 b8 cb", Some(Heavy128)),
    ("vmovdqu ymm1, ymmword [rax]", "c5 fe 6f 08", Some(Light256)),
    ("vmovdqu ymmword [rax], ymm1", "c5 fe 7f 08", Some(Light256)),
    ("vmovntdq ymmword [rax], ymm1", "c5 fd e7 08", Some(Light256)),
    ("vpxor ymm1, ymm2, ymm3", "c5 ed ef cb", Some(Light256)),
    ("vpaddq ymm1, ymm2, ymm3", "c5 ed d4 cb", Some(Light256)),
    ("vpshufb ymm1, ymm2, ymm3", "c4 e2 6d 00 cb", Some(Light256)),
    ("vbroadcasti128 ymm1, xmmword [rax]", "c4 e2 7d 5a 08", Some(Light256)),
    ("vextracti128 xmm1, ymm2, 1", "c4 e3 7d 39 d1 01", Some(Light256)),
    ("vinserti128 ymm1, ymm2, xmm3, 1", "c4 e3 6d 38 cb 01", Some(Light256)),
    ("vpmovmskb eax, ymm1", "c5 fd d7 c1", Some(Light256)),
    ("vptest ymm1, ymm2", "c4 e2 7d 17 ca", Some(Light256)),
    ("vtestps ymm1, ymm2", "c4 e2 7d 0e ca", Some(Light256)),
    ("vpgatherqd xmm1, dword [rax+ymm2*4], xmm3", "c4 e2 65 91 0c 90", Some(Light256)),
    ("vpsadbw ymm1, ymm2, ymm3", "c5 ed f6 cb", Some(Light256)),
    ("vpabsd ymm1, ymm2", "c4 e2 7d 1e ca", Some(Light256)),
    ("vpcmpgtd ymm1, ymm2, ymm3", "c5 ed 66 cb", Some(Light256)),
    ("vaddpd ymm1, ymm2, ymm3", "c5 ed 58 cb", Some(Heavy256)),
    ("vcvtpd2ps xmm1, ymm2", "c5 fd 5a ca", Some(Heavy256)),
    ("vcvtpd2ps xmm1, ymmword [rax]", "c5 fd 5a 08", Some(Heavy256)),
    ("vcvtps2pd ymm1, xmm2", "c5 fc 5a ca", Some(Heavy256)),
    ("vcvtps2ph xmm1, ymm2, 0", "c4 e3 7d 1d d1 00", Some(Heavy256)),
    ("vfnmadd213pd ymm1, ymm2, ymm3", "c4 e2 ed ac cb", Some(Heavy256)),
    ("vpmuludq ymm1, ymm2, ymm3", "c5 ed f4 cb", Some(Heavy256)),
    ("vpmaddubsw ymm1, ymm2, ymm3", "c4 e2 6d 04 cb", Some(Heavy256)),
    ("vmaxps ymm1, ymm2, ymm3", "c5 ec 5f cb", Some(Heavy256)),
    ("vroundps ymm1, ymm2, 3", "c4 e3 7d 08 ca 03", Some(Heavy256)),
    ("vrcpps ymm1, ymm2", "c5 fc 53 ca", Some(Heavy256)),
    ("{vex} vpdpbusd ymm1, ymm2, ymm3", "c4 e2 6d 50 cb", Some(Heavy256)),
    ("vmovdqu64 zmm1, zmmword [rax]", "62 f1 fe 48 6f 08", Some(Light512)),
    ("vmovdqa64 zmm17, zmm18", "62 a1 fd 48 6f ca", Some(Light512)),
    ("vpaddd zmm1{k1}, zmm2, zmm3", "62 f1 6d 49 fe cb", Some(Light512)),
    ("vpternlogq zmm1, zmm2, zmm3, 0x96", "62 f3 ed 48 25 cb 96", Some(Light512)),
    ("vprold zmm1, zmm2, 7", "62 f1 75 48 72 ca 07", Some(Light512)),
    ("vpermi2q zmm1, zmm2, zmm3", "62 f2 ed 48 76 cb", Some(Light512)),
    ("vpcmpeqb k1, zmm2, zmm3", "62 f1 6d 48 74 cb", Some(Light512)),
    ("vpmovm2b zmm1, k1", "62 f2 7e 48 28 c9", Some(Light512)),
    ("vpmovqb qword [rax], zmm1", "62 f2 7e 48 32 08", Some(Light512)),
    ("vextracti64x4 ymm1, zmm2, 1", "62 f3 fd 48 3b d1 01", Some(Light512)),
    ("vpcompressd zmm1{k1}, zmm2", "62 f2 7d 49 8b d1", Some(Light512)),
    ("vpconflictd zmm1, zmm2", "62 f2 7d 48 c4 ca", Some(Light512)),
    ("vpopcntq zmm1, zmm2", "62 f2 fd 48 55 ca", Some(Light512)),
    ("vpmultishiftqb zmm1, zmm2, zmm3", "62 f2 ed 48 83 cb", Some(Light512)),
    ("vpscatterdd dword [rax+zmm1*4]{k1}, zmm2", "62 f2 7d 49 a0 14 88", Some(Light512)),
    ("vfpclassps k1, zmm2, 1", "62 f3 7d 48 66 ca 01", Some(Light512)),
    ("vpclmulqdq zmm1, zmm2, zmm3, 1", "62 f3 6d 48 44 cb 01", Some(Light512)),
    ("vgf2p8mulb zmm1, zmm2, zmm3", "62 f2 6d 48 cf cb", Some(Light512)),
    ("vdbpsadbw zmm1, zmm2, zmm3, 1", "62 f3 6d 48 42 cb 01", Some(Light512)),
    ("vxorpd zmm1, zmm2, zmm3", "62 f1 ed 48 57 cb", Some(Light512)),
    ("vexpandps zmm1{k1}, zmm2", "62 f2 7d 49 88 ca", Some(Light512)),
    ("valignq zmm1, zmm2, zmm3, 1", "62 f3 ed 48 03 cb 01", Some(Light512)),
    ("vaddps zmm1, zmm2, zmm3", "62 f1 6c 48 58 cb", Some(Heavy512)),
    ("vaddps zmm1, zmm2, dword [rax]{1to16}", "62 f1 6c 58 58 08", Some(Heavy512)),
    ("vfmadd231pd zmm1, zmm2, zmm3", "62 f2 ed 48 b8 cb", Some(Heavy512)),
    ("vcvtpd2ps ymm1, zmm2", "62 f1 fd 48 5a ca", Some(Heavy512)),
    ("vcvtpd2ps ymm1, qword [rax]{1to8}", "62 f1 fd 58 5a 08", Some(Heavy512)),
    ("vcvtqq2pd zmm1, zmm2", "62 f1 fe 48 e6 ca", Some(Heavy512)),
    ("vcmppd k1, zmm2, zmm3, 1", "62 f1 ed 48 c2 cb 01", Some(Heavy512)),
    ("vrangeps zmm1, zmm2, zmm3, 1", "62 f3 6d 48 50 cb 01", Some(Heavy512)),
    ("vreducepd zmm1, zmm2, 1", "62 f3 fd 48 56 ca 01", Some(Heavy512)),
    ("vrndscaleps zmm1, zmm2, 1", "62 f3 7d 48 08 ca 01", Some(Heavy512)),
    ("vgetexppd zmm1, zmm2", "62 f2 fd 48 42 ca", Some(Heavy512)),
    ("vscalefps zmm1, zmm2, zmm3", "62 f2 6d 48 2c cb", Some(Heavy512)),
    ("vfixupimmps zmm1, zmm2, zmm3, 1", "62 f3 6d 48 54 cb 01", Some(Heavy512)),
    ("vrsqrt14ps zmm1, zmm2", "62 f2 7d 48 4e ca", Some(Heavy512)),
    ("vpmullq zmm1, zmm2, zmm3", "62 f2 ed 48 40 cb", Some(Heavy512)),
    ("vpmulhrsw zmm1, zmm2, zmm3", "62 f2 6d 48 0b cb", Some(Heavy512)),
    ("vpmaddwd zmm1, zmm2, zmm3", "62 f1 6d 48 f5 cb", Some(Heavy512)),
    ("vpmadd52luq zmm1, zmm2, zmm3", "62 f2 ed 48 b4 cb", Some(Heavy512)),
    ("vpdpbusd zmm1, zmm2, zmm3", "62 f2 6d 48 50 cb", Some(Heavy512)),
    ("vpdpwssd zmm1, zmm2, zmm3", "62 f2 6d 48 52 cb", Some(Heavy512)),
    ("vdpbf16ps zmm1, zmm2, zmm3", "62 f2 6e 48 52 cb", Some(Heavy512)),
    ("vcvtne2ps2bf16 zmm1, zmm2, zmm3", "62 f2 6f 48 72 cb", Some(Heavy512)),
    ("vaddph zmm1, zmm2, zmm3", "62 f5 6c 48 58 cb", Some(Heavy512)),
    ("vfcmaddcph zmm1, zmm2, zmm3", "62 f6 6f 48 56 cb", Some(Heavy512)),
    ("vcvtph2psx zmm1, ymm2", "62 f6 7d 48 13 ca", Some(Heavy512)),
    ("vaddsh xmm1, xmm2, xmm3", "62 f5 6e 08 58 cb", Some(Scalar)),
    ("vcvtsh2si eax, xmm1", "62 f5 7e 08 2d c1", Some(Scalar)),
    ("vmovw xmm1, eax", "62 f5 7d 08 6e c8", Some(Scalar)),
    ("vcvtusi2sd xmm1, xmm2, rax", "62 f1 ef 08 7b c8", Some(Scalar)),
    ("vmovdqu64 xmm17, xmmword [rax]", "62 e1 fe 08 6f 08", Some(Light128)),
    ("vpcompressd xmm1{k1}, xmm2", "62 f2 7d 09 8b d1", Some(Light128)),
    ("vpaddd ymm16, ymm17, ymm18", "62 a1 75 20 fe c2", Some(Light256)),
    ("vmovdqu8 ymm31{k1}{z}, ymmword [rax]", "62 61 7f a9 6f 38", Some(Light256)),
    ("vpmadd52huq xmm16, xmm17, xmm18", "62 a2 f5 00 b5 c2", Some(Heavy128)),
    ("vpdpwssd xmm17, xmm1, xmm2", "62 e2 75 08 52 ca", Some(Heavy128)),
    ("vpmadd52luq ymm16, ymm17, ymm18", "62 a2 f5 20 b4 c2", Some(Heavy256)),
    ("vmulph ymm1, ymm2, ymm3", "62 f5 6c 28 59 cb", Some(Heavy256)),
    ("vcvtneps2bf16 ymm1, zmm2", "62 f2 7e 48 72 ca", Some(Heavy512)),
    ("tdpbssd tmm1, tmm2, tmm3", "c4 e2 63 5e ca", Some(Tile)),
    ("tdpbf16ps tmm1, tmm2, tmm3", "c4 e2 62 5c ca", Some(Tile)),
    ("tileloadd tmm1, [rax+rbx*1]", "c4 e2 7b 4b 0c 18", Some(Tile)),
    ("tilestored [rax+rbx*1], tmm1", "c4 e2 7a 4b 0c 18", Some(Tile)),
    ("tilezero tmm1", "c4 e2 7b 49 c8", Some(Tile)),
    ("ldtilecfg [rax]", "c4 e2 78 49 00", Some(Tile)),
    ("tilerelease", "c4 e2 78 49 c0", Some(Tile)),
    ("add rax, rbx", "48 01 d8", None),
    ("imul rax, rbx", "48 0f af c3", None),
    ("mulx rax, rbx, rcx", "c4 e2 e3 f6 c1", None),
    ("movdir64b rax, [rbx]", "66 0f 38 f8 03", None),
    ("movsd", "a5", None),
    ("fadd st(0), st(1)", "d8 c1", None),
    ("vzeroupper", "c5 f8 77", None),
    ("vzeroall", "c5 fc 77", None),
    ("kmovq rax, k1", "c4 e1 fb 93 c1", None),
    ("kandw k1, k2, k3", "c5 ec 41 cb", None),
    ("xsave [rax]", "0f ae 20", None),
    ("ldmxcsr [rax]", "0f ae 10", None),
    ("prefetcht0 [rax]", "0f 18 08", None),
    ("endbr64", "f3 0f 1e fa", None),
    ("crc32 eax, ebx", "f2 0f 38 f1 c3", None),
];

fn decode(hex: &str) -> Instruction {
    let bytes: Vec<u8> =
        hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect();
    let mut decoder = Decoder::new(64, &bytes, DecoderOptions::NONE);
    let instruction = decoder.decode();
    assert!(!instruction.is_invalid() && !decoder.can_decode(), "`{hex}` is no instruction");
    instruction
}

#[test]
fn classifies_as_the_golden_table_says() {
    let wrong: Vec<String> = GOLDEN
        .iter()
        .filter_map(|(text, hex, expected)| {
            let found = classify(&decode(hex));
            (found != *expected).then(|| format!("{text}: {found:?}, expected {expected:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn golden_table_has_every_class() {
    for class in InstructionClass::ALL {
        let rows = GOLDEN.iter().filter(|row| row.2 == Some(class)).count();
        assert!(rows >= 5, "{class}: only {rows} rows");
    }
}

/// Every form that names a vector or tile register has a class; no other form has one.
#[test]
fn gives_a_class_to_exactly_the_forms_with_vectors() {
    let is_vector = |kind: &str| {
        ["xmm", "ymm", "zmm", "tmm", "mm_", "mem_vsib"].iter().any(|start| kind.starts_with(start))
    };
    for code in Code::values() {
        let form = code.op_code();
        let vector = (0..form.op_count()).any(|i| is_vector(&format!("{:?}", form.op_kind(i))));
        let tile = format!("{code:?}").to_lowercase().contains("tile");
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        assert_eq!(classify(&instruction).is_some(), vector || tile, "{code:?}");
    }
}

/// The vector length of EVEX forms also gives their width, and must agree.
#[test]
fn width_agrees_with_the_vector_length_of_evex_forms() {
    for code in Code::values() {
        let form = code.op_code();
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        let class = classify(&instruction);
        // Prefetches of scattered elements name only a vector of indices, which may be half as
        // wide.
        let prefetch = format!("{code:?}").contains("erpf");
        let vector = !matches!(class, None | Some(Scalar));
        if form.encoding() != EncodingKind::EVEX || !vector || prefetch {
            continue;
        }
        let expected: &[InstructionClass] = match form.l() {
            0 => &[Light128, Heavy128],
            1 => &[Light256, Heavy256],
            _ => &[Light512, Heavy512],
        };
        assert!(expected.contains(&class.expect("was checked")), "{code:?}: {class:?}");
    }
}
