//! Instruction-set extensions.

/// An instruction-set extension that a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the architecture's own")]
pub enum Feature {
    Avx2,
    Fma,
    Avx512f,
    Avx512dq,
    Avx512bw,
    Avx512vl,
    Avx512ifma,
    AmxTile,
    AmxBf16,
    AmxInt8,
}

impl Feature {
    /// The name in `/proc/cpuinfo`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avx2 => "avx2",
            Self::Fma => "fma",
            Self::Avx512f => "avx512f",
            Self::Avx512dq => "avx512dq",
            Self::Avx512bw => "avx512bw",
            Self::Avx512vl => "avx512vl",
            Self::Avx512ifma => "avx512ifma",
            Self::AmxTile => "amx_tile",
            Self::AmxBf16 => "amx_bf16",
            Self::AmxInt8 => "amx_int8",
        }
    }
}
