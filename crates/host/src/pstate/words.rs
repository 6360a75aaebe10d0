//! P-states and CPUs as users write them.

use dimmer_processor::units::{CpuId, KiloHertz, MicroVolts};

use super::Redefinition;
use crate::root::parse_cpu_list;

/// A list of CPUs: one value, which a parser of command lines does not take for several.
#[derive(Clone, Debug)]
pub struct Cpus(pub Vec<CpuId>);

/// A list of CPUs, as in `0-3,8`.
///
/// # Errors
/// What was expected.
pub fn cpus(text: &str) -> Result<Cpus, String> {
    let cpus = parse_cpu_list(text).filter(|cpus| !cpus.is_empty());
    cpus.map(Cpus).ok_or_else(|| "expected a list of CPUs as in `0-3,8`".to_owned())
}

fn number(text: &str) -> Option<u8> {
    text.strip_prefix('P')?.parse().ok()
}

/// CPUs and the P-state that they request, as in `0-3,8=P2`.
///
/// # Errors
/// What was expected.
pub fn request(text: &str) -> Result<(Vec<CpuId>, u8), String> {
    let parsed = || {
        let (cpus, state) = text.rsplit_once('=')?;
        Some((self::cpus(cpus).ok()?.0, number(state)?))
    };
    parsed().ok_or_else(|| "expected CPUs and a P-state as in `0-3,8=P2`".to_owned())
}

/// A P-state and what it becomes, as in `P2=833MHz` or `P2=833MHz@800mV`.
///
/// # Errors
/// What was expected.
pub fn definition(text: &str) -> Result<Redefinition, String> {
    let parsed = || {
        let (state, value) = text.split_once('=')?;
        let (frequency, voltage) = match value.split_once('@') {
            Some((frequency, voltage)) => (frequency, Some(voltage)),
            None => (value, None),
        };
        // At most six digits, so that no conversion overflows.
        let in_unit = |text: &str, unit: &str| -> Option<u64> {
            text.strip_suffix(unit)?.parse().ok().filter(|value| *value < 1_000_000)
        };
        let voltage = match voltage {
            Some(voltage) => Some(MicroVolts::from_mv(in_unit(voltage, "mV")?)),
            None => None,
        };
        let frequency = KiloHertz::from_mhz(in_unit(frequency, "MHz")?);
        Some(Redefinition { number: number(state)?, frequency, voltage })
    };
    parsed().ok_or_else(|| {
        "expected a P-state and its frequency as in `P2=833MHz`, or with its voltage as in \
         `P2=833MHz@800mV`"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_requests_and_definitions() {
        let cpus = |list: &[u32]| list.iter().copied().map(CpuId::new).collect::<Vec<_>>();
        assert_eq!(request("0-1,4=P12"), Ok((cpus(&[0, 1, 4]), 12)));
        let [frequency, voltage] = [833_000, 800_000];
        let expected = Redefinition {
            number: 2,
            frequency: KiloHertz::from_khz(frequency),
            voltage: Some(MicroVolts::from_uv(voltage)),
        };
        assert_eq!(definition("P2=833MHz@800mV"), Ok(expected));
        assert_eq!(definition("P2=833MHz"), Ok(Redefinition { voltage: None, ..expected }));
    }

    #[test]
    fn refuses_other_texts_with_an_example() {
        for text in ["", "0", "0=2", "=P2", "0-=P2", "0=P256", "0=P-1", "0=p2"] {
            assert!(request(text).unwrap_err().contains("`0-3,8=P2`"), "{text}");
        }
        let texts = ["", "P2", "P2=", "P2=833", "2=833MHz", "P2=833MHz@", "P2=833MHz@1.2V"];
        for text in texts.into_iter().chain(["P2=-1MHz", "P2=1000000MHz", "P2=99999999999999MHz"]) {
            assert!(definition(text).unwrap_err().contains("`P2=833MHz`"), "{text}");
        }
    }
}
