//! Which programs the server acts on, while others are only observed.

/// Whether a program of this name is among the `percent` of all programs whose calls may be moved.
///
/// The same name always gives the same answer, on all machines and in all versions, and a program
/// that is in at one percentage is in at all higher ones. From 100 on all programs are in, at 0
/// none. A program of another name is in or out independently.
///
/// # Examples
/// ```
/// use dimmer_policy::server::canary::acts_on;
/// assert!(acts_on("nginx", 100.0) && !acts_on("nginx", 0.0));
/// ```
#[must_use]
pub fn acts_on(program: &str, percent: f64) -> bool {
    // The upper 53 bits are exact as a float, from 0 to just below 100 %.
    let place = (hash(program) >> 11) as f64 / (1_u64 << 53) as f64;
    place * 100.0 < percent
}

/// FNV-1a, whose last characters reach the low bits alone, mixed by the finaliser of `SplitMix64`.
///
/// # Source
/// RFC 9923 for FNV-1a with 64 bits; Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators" (OOPSLA 2014), for the finaliser with Stafford's constants.
fn hash(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_of_programs_is_in_and_stays_in() {
        let names: Vec<String> = (0..10_000).map(|number| format!("program-{number}")).collect();
        let mut before = 0;
        for percent in [0.0, 1.0, 10.0, 50.0, 99.0, 100.0] {
            let inside = names.iter().filter(|name| acts_on(name, percent)).count();
            // Five standard deviations of a fair draw.
            let spread = 5.0 * (10_000.0 * percent / 100.0 * (1.0 - percent / 100.0)).sqrt();
            assert!((inside as f64 - percent * 100.0).abs() <= spread, "{percent}: {inside}");
            assert!(inside >= before);
            before = inside;
        }
        for name in &names {
            let first = (0..=100).find(|percent| acts_on(name, f64::from(*percent)));
            let first = first.unwrap_or_else(|| panic!("{name} is never in"));
            assert!((first..=100).all(|percent| acts_on(name, f64::from(percent))), "{name}");
        }
    }

    #[test]
    fn programs_stay_in_or_out_in_later_versions() {
        let places = ["nginx", "x265", "postgres", "java", ""].map(|name| hash(name) >> 57);
        // Computed by an independent program.
        assert_eq!(places, [9, 22, 123, 73, 122]);
    }
}
