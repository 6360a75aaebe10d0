//! Searches for the least of a function without its derivatives, in the unit cube: golden section
//! in one dimension, the simplex of Nelder and Mead ("A simplex method for function minimization",
//! The Computer Journal 7, 1965) in several. Pure: the same function, the same result.

/// The golden section.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// How near to each other points are that count as one.
pub(super) const NEAR: f64 = 1e-4;

/// The most evaluations of a simplex.
const MOST: usize = 120;

/// A place and the function's value there.
pub(super) type Point = (Vec<f64>, f64);

/// The least between two ends, if there is one low between them.
pub(super) fn golden<E>(
    (mut low, mut high): (f64, f64),
    mut of: impl FnMut(f64) -> Result<f64, E>,
) -> Result<(f64, f64), E> {
    let mut left = high - GOLDEN * (high - low);
    let mut right = low + GOLDEN * (high - low);
    let (mut of_left, mut of_right) = (of(left)?, of(right)?);
    while high - low > NEAR {
        if of_left <= of_right {
            (high, right, of_right) = (right, left, of_left);
            left = high - GOLDEN * (high - low);
            of_left = of(left)?;
        } else {
            (low, left, of_left) = (left, right, of_right);
            right = low + GOLDEN * (high - low);
            of_right = of(right)?;
        }
    }
    Ok(if of_left <= of_right { (left, of_left) } else { (right, of_right) })
}

/// The least near a start, in any number of dimensions from 1.
///
/// * `size`: the first simplex has edges of this length.
pub(super) fn least<E>(
    start: &[f64],
    size: f64,
    mut of: impl FnMut(&[f64]) -> Result<f64, E>,
) -> Result<Point, E> {
    let dimensions = start.len();
    if dimensions == 1 {
        let ends = ((start[0] - size).max(0.0), (start[0] + size).min(1.0));
        let (at, value) = golden(ends, |at| of(&[at]))?;
        let own = of(start)?;
        return Ok(if own <= value { (start.to_vec(), own) } else { (vec![at], value) });
    }
    let mut simplex: Vec<Point> = Vec::new();
    for corner in 0..=dimensions {
        let mut at = start.to_vec();
        if let Some(edge) = corner.checked_sub(1) {
            at[edge] += if at[edge] + size > 1.0 { -size } else { size };
        }
        let value = of(&at)?;
        simplex.push((at, value));
    }
    for _ in 0..MOST {
        simplex.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let (best, worst) = (simplex[0].clone(), simplex[dimensions].clone());
        let spread = |axis: usize| {
            simplex.iter().map(|(at, _)| (at[axis] - best.0[axis]).abs()).fold(0.0, f64::max)
        };
        if (0..dimensions).map(spread).fold(0.0, f64::max) < NEAR {
            break;
        }
        let middle: Vec<f64> = (0..dimensions)
            .map(|axis| simplex[..dimensions].iter().map(|(at, _)| at[axis]).sum::<f64>())
            .map(|sum| sum / dimensions as f64)
            .collect();
        // From the worst corner through the middle of the others, by this much beyond it.
        let mut beyond = |by: f64| -> Result<Point, E> {
            let axes = middle.iter().zip(&worst.0);
            let at: Vec<f64> = axes
                .map(|(middle, worst)| (middle + by * (middle - worst)).clamp(0.0, 1.0))
                .collect();
            let value = of(&at)?;
            Ok((at, value))
        };
        let reflected = beyond(1.0)?;
        let new = if reflected.1 < best.1 {
            let expanded = beyond(2.0)?;
            Some(if expanded.1 < reflected.1 { expanded } else { reflected })
        } else if reflected.1 < simplex[dimensions - 1].1 {
            Some(reflected)
        } else {
            let by = if reflected.1 < worst.1 { 0.5 } else { -0.5 };
            let contracted = beyond(by)?;
            (contracted.1 < worst.1.min(reflected.1)).then_some(contracted)
        };
        match new {
            Some(new) => simplex[dimensions] = new,
            None => {
                for (at, value) in simplex.iter_mut().skip(1) {
                    at.iter_mut().zip(&best.0).for_each(|(own, best)| *own = (*own + best) / 2.0);
                    *value = of(at)?;
                }
            }
        }
    }
    simplex.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    Ok(simplex.swap_remove(0))
}

/// Starts for searches: points that cover the unit cube evenly (Halton, Numerische Mathematik 2,
/// 1960), with the ends and the middle of one dimension.
pub(super) fn starts(dimensions: usize) -> Vec<Vec<f64>> {
    if dimensions == 1 {
        return (0..=12).map(|step| vec![f64::from(step) / 12.0]).collect();
    }
    let inverse = |mut number: u32, base: u32| {
        let (mut sum, mut part) = (0.0, 1.0 / f64::from(base));
        while number > 0 {
            sum += f64::from(number % base) * part;
            part /= f64::from(base);
            number /= base;
        }
        sum
    };
    let count = if dimensions == 2 { 16 } else { 32 };
    (1..=count)
        .map(|number| [2, 3, 5].map(|base| inverse(number, base))[..dimensions].to_vec())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[track_caller]
    fn check(start: &[f64], of: impl Fn(&[f64]) -> f64, expected: &[f64]) {
        let Ok((at, _)) = least::<Infallible>(start, 0.2, |at| Ok(of(at)));
        for (at, expected) in at.iter().zip(expected) {
            assert!((at - expected).abs() < 2e-3, "{at} for {expected}");
        }
    }

    #[test]
    fn the_least_is_found_in_one_to_three_dimensions() {
        check(&[0.5], |at| (at[0] - 0.4).powi(2), &[0.4]);
        check(&[0.1, 0.9], |at| (at[0] - 0.4).powi(2) + 9.0 * (at[1] - 0.7).powi(2), &[0.4, 0.7]);
        // A bent valley (Rosenbrock's, made smaller).
        let bent = |at: &[f64]| {
            let [x, y] = [4.0 * at[0] - 2.0, 4.0 * at[1] - 2.0];
            (1.0 - x).powi(2) + 10.0 * (y - x * x).powi(2)
        };
        check(&[0.2, 0.8], bent, &[0.75, 0.75]);
        let far = |at: &[f64]| {
            at.iter().zip([0.9, 0.2, 0.5]).map(|(at, of)| (at - of).abs()).sum::<f64>()
        };
        check(&[0.5, 0.5, 0.5], far, &[0.9, 0.2, 0.5]);
    }

    #[test]
    fn what_is_least_at_an_end_is_found_there() {
        check(&[0.9], |at| at[0], &[0.7]);
        check(&[0.1, 0.1], |at| at[0] + at[1], &[0.0, 0.0]);
    }

    #[test]
    fn starts_lie_in_the_cube_and_none_twice() {
        for dimensions in 1..=3 {
            let starts = starts(dimensions);
            for (index, start) in starts.iter().enumerate() {
                assert!(start.len() == dimensions && !starts[..index].contains(start));
                assert!(start.iter().all(|at| (0.0..=1.0).contains(at)));
            }
        }
    }
}
