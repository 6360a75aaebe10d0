//! The arguments of `dimmer pstate`.

use clap::{Args, Subcommand};
use dimmer_host::pstate::Redefinition;
use dimmer_host::root::parse_cpu_list;
use dimmer_processor::units::{CpuId, KiloHertz, MicroVolts};

use super::common::Json;

#[derive(Debug, Subcommand)]
pub(crate) enum Pstate {
    /// Shows the P-states, their limits, and which of them each CPU requests and has.
    Show(Json),
    /// Requests P-states for CPUs, or defines P-states, until a signal ends it.
    Set(PstateSet),
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
P-states have the numbers that `dimmer pstate show` prints. On Intel's processors that is the ratio to 100 MHz: P20 is 2000 MHz.

This lasts until a signal ends it (Ctrl-C, SIGTERM, SIGHUP); the P-states and governors from before come back then, and by \
`dimmer restore` after a SIGKILL. Definitions stay within the processor's own: no frequency and no voltage above its highest, and no \
voltage below that of its slowest P-state that is as fast. docs/pstate.md has the details.

Examples:
  dimmer pstate set --fast 0-1 --define P2=833MHz --turbo-off   # paper 004, table 5.1: one core at P0, all others slow
  dimmer pstate set --request 4-7=P3 --keep
  dimmer pstate set --define P1=2500MHz@1000mV")]
pub(crate) struct PstateSet {
    /// CPUs that request the fastest P-state; without --slow, all others request the slowest.
    #[arg(long, value_name = "LIST", value_parser = list)]
    pub(crate) fast: Option<Cpus>,

    /// CPUs that request the slowest P-state.
    #[arg(long, value_name = "LIST", value_parser = list)]
    pub(crate) slow: Option<Cpus>,

    /// CPUs that request a P-state; can be repeated.
    #[arg(long, value_name = "LIST=P", value_parser = request)]
    pub(crate) request: Vec<(Vec<CpuId>, u8)>,

    /// Gives a P-state another frequency and voltage, for all CPUs (AMD); can be repeated. Without
    /// a voltage, it gets the least that the frequency needs.
    #[arg(long, value_name = "P=MHz[@mV]", value_parser = definition)]
    pub(crate) define: Vec<Redefinition>,

    /// Switches turbo off as well, so that no core is faster than its P-state.
    #[arg(long)]
    pub(crate) turbo_off: bool,

    /// Ends at once and leaves everything as it is then, until `dimmer restore` or a restart.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// A list of CPUs: one value, which clap does not take for several.
#[derive(Clone, Debug)]
pub(crate) struct Cpus(pub(crate) Vec<CpuId>);

fn list(text: &str) -> Result<Cpus, String> {
    let cpus = parse_cpu_list(text).filter(|cpus| !cpus.is_empty());
    cpus.map(Cpus).ok_or_else(|| "expected a list of CPUs as in `0-3,8`".to_owned())
}

fn number(text: &str) -> Option<u8> {
    text.strip_prefix('P')?.parse().ok()
}

fn request(text: &str) -> Result<(Vec<CpuId>, u8), String> {
    let parsed = || {
        let (cpus, state) = text.rsplit_once('=')?;
        Some((list(cpus).ok()?.0, number(state)?))
    };
    parsed().ok_or_else(|| "expected CPUs and a P-state as in `0-3,8=P2`".to_owned())
}

fn definition(text: &str) -> Result<Redefinition, String> {
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
