//! The order of the vertices in each layer.

use super::Vertex;

/// How often the layers are gone through, down and up in turn.
const SWEEPS: usize = 12;

/// Sorts the layers so that few edges cross: vertices by the mean place of their neighbors in the
/// layer before. Keeps the best of all orders seen.
pub(super) fn sort(layers: &mut [Vec<usize>], vertices: &[Vertex]) {
    let mut places = vec![0; vertices.len()];
    layers.iter().for_each(|layer| number(layer, &mut places));
    let mut best = (crossings(layers, vertices, &places), layers.to_vec());
    for sweep in 0..SWEEPS {
        let is_down = sweep % 2 == 0;
        let count = layers.len();
        for step in 0..count {
            let layer = &mut layers[if is_down { step } else { count - 1 - step }];
            let mean = |at: usize| {
                let vertex = &vertices[at];
                let neighbors = if is_down { &vertex.above } else { &vertex.below };
                if neighbors.is_empty() {
                    return places[at] as f64;
                }
                let sum: usize = neighbors.iter().map(|other| places[*other]).sum();
                sum as f64 / neighbors.len() as f64
            };
            layer.sort_by(|a, b| mean(*a).total_cmp(&mean(*b)));
            number(layer, &mut places);
        }
        let crossings = crossings(layers, vertices, &places);
        if crossings < best.0 {
            best = (crossings, layers.to_vec());
        }
    }
    layers.clone_from_slice(&best.1);
}

fn number(layer: &[usize], places: &mut [usize]) {
    for (place, at) in layer.iter().enumerate() {
        places[*at] = place;
    }
}

/// The number of pairs of edges that cross.
fn crossings(layers: &[Vec<usize>], vertices: &[Vertex], places: &[usize]) -> usize {
    let of_layer = |layer: &Vec<usize>| {
        let mut below: Vec<usize> = Vec::new();
        let mut crossings = 0;
        for at in layer {
            let ends: Vec<usize> = vertices[*at].below.iter().map(|end| places[*end]).collect();
            let crosses = |end: &usize| below.iter().filter(|other| *other > end).count();
            crossings += ends.iter().map(crosses).sum::<usize>();
            below.extend(ends);
        }
        crossings
    };
    layers.iter().map(of_layer).sum()
}
