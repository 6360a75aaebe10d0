//! Places a directed graph in layers (Sugiyama, Tagawa and Toda, "Methods for Visual Understanding
//! of Hierarchical System Structures", 1981).
//!
//! Edges that close a cycle are turned round; each box is below all boxes with edges to it; an edge
//! gets a vertex in each layer that it passes, one of which is its label; the vertices of a layer
//! are sorted by the mean place of their neighbors; and each comes as near to the mean of their
//! coordinates as the others of its layer allow.

mod coordinates;
mod order;

/// Vertical distance between layers, if no edge goes far to the side between them.
const LEAST_GAP: f64 = 26.0;
const LARGEST_GAP: f64 = 90.0;

/// Horizontal distance between parts that no edge connects.
const BETWEEN_PARTS: f64 = 24.0;

/// Width that an edge takes on both sides of its line where it passes a layer.
const PASSING: Extent = Extent { left: 8.0, right: 8.0, height: 0.0 };

/// The room that a vertex takes, to the left and to the right of its line: the middle of a box, or
/// the edge that a label is beside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) height: f64,
}

/// An edge between two different boxes, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) label: Extent,
}

/// Where all is.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The line and the top of each box.
    pub(super) boxes: Vec<(f64, f64)>,
    pub(super) routes: Vec<Route>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// The way of an edge.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Vertical stretches (x, top, bottom) from the upper to the lower box, to connect by curves.
    pub(super) stretches: Vec<(f64, f64, f64)>,
    /// Whether the edge ends at the upper box.
    pub(super) is_upwards: bool,
    /// The line and the middle of the label.
    pub(super) label: (f64, f64),
}

/// A box, a label or a place where an edge passes a layer.
#[derive(Clone, Debug)]
struct Vertex {
    extent: Extent,
    is_box: bool,
    layer: usize,
    /// Its neighbors in the layer above and in the one below.
    above: Vec<usize>,
    below: Vec<usize>,
    x: f64,
}

/// Places boxes and edges; parts that no edge connects are side by side.
///
/// # Cost
/// O(n²) in the boxes, O(n m) with m edges, and O(m²) for m edges between two layers.
pub(super) fn place(boxes: &[Extent], edges: &[Edge]) -> Layout {
    let parts = parts(boxes.len(), edges);
    let unplaced = Route { stretches: Vec::new(), is_upwards: false, label: (0.0, 0.0) };
    let mut all = Layout {
        boxes: vec![(0.0, 0.0); boxes.len()],
        routes: vec![unplaced; edges.len()],
        width: 0.0,
        height: 0.0,
    };
    for part in 0..boxes.len() {
        let of_part = |at: &usize| parts[*at] == part;
        let own: Vec<usize> = (0..boxes.len()).filter(of_part).collect();
        if own.is_empty() {
            continue;
        }
        let numbers: Vec<usize> =
            (0..edges.len()).filter(|at| of_part(&edges[*at].start)).collect();
        let find = |at: usize| own.binary_search(&at).unwrap_or_default();
        let inner: Vec<Edge> = numbers
            .iter()
            .map(|at| Edge {
                start: find(edges[*at].start),
                end: find(edges[*at].end),
                ..edges[*at]
            })
            .collect();
        let extents: Vec<Extent> = own.iter().map(|at| boxes[*at]).collect();
        let layout = place_part(&extents, &inner);
        let aside = if all.width > 0.0 { all.width + BETWEEN_PARTS } else { 0.0 };
        for (at, (x, top)) in own.into_iter().zip(layout.boxes) {
            all.boxes[at] = (x + aside, top);
        }
        for (at, mut route) in numbers.into_iter().zip(layout.routes) {
            route.stretches.iter_mut().for_each(|stretch| stretch.0 += aside);
            route.label.0 += aside;
            all.routes[at] = route;
        }
        all.width = aside + layout.width;
        all.height = all.height.max(layout.height);
    }
    all
}

/// The part of the graph that each box is in: the lowest number of its boxes.
fn parts(boxes: usize, edges: &[Edge]) -> Vec<usize> {
    let mut parts: Vec<usize> = (0..boxes).collect();
    for edge in edges {
        let (a, b) = (parts[edge.start], parts[edge.end]);
        let joined = a.min(b);
        parts.iter_mut().filter(|part| **part == a || **part == b).for_each(|part| *part = joined);
    }
    parts
}

/// Places boxes that edges connect.
fn place_part(boxes: &[Extent], edges: &[Edge]) -> Layout {
    let (levels, is_upwards) = levels(boxes.len(), edges);
    let mut vertices: Vec<Vertex> =
        boxes.iter().zip(&levels).map(|(extent, layer)| vertex(*extent, true, *layer)).collect();
    let chains: Vec<Vec<usize>> = edges
        .iter()
        .zip(&is_upwards)
        .map(|(edge, is_upwards)| chain(&mut vertices, edge, *is_upwards))
        .collect();
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for (index, vertex) in vertices.iter().enumerate() {
        layers.resize(layers.len().max(vertex.layer + 1), Vec::new());
        layers[vertex.layer].push(index);
    }
    order::sort(&mut layers, &vertices);
    coordinates::assign(&mut vertices, &layers);
    let heights = heights(&vertices, &layers);
    let top = |at: usize| {
        let Vertex { extent, layer, .. } = &vertices[at];
        let (top, bottom) = heights[*layer];
        (top + bottom - extent.height) / 2.0
    };
    let routes = chains
        .iter()
        .zip(is_upwards)
        .map(|(chain, is_upwards)| route(chain, is_upwards, &vertices, &heights))
        .collect();
    Layout {
        boxes: (0..boxes.len()).map(|index| (vertices[index].x, top(index))).collect(),
        routes,
        width: vertices.iter().map(|one| one.x + one.extent.right).fold(0.0, f64::max),
        height: heights.last().map_or(0.0, |(_, bottom)| *bottom),
    }
}

fn vertex(extent: Extent, is_box: bool, layer: usize) -> Vertex {
    Vertex { extent, is_box, layer, above: Vec::new(), below: Vec::new(), x: 0.0 }
}

/// The layer of each box, and which edges go upwards. Boxes are in even layers, so that each edge
/// passes a layer with room for its label.
fn levels(boxes: usize, edges: &[Edge]) -> (Vec<usize>, Vec<bool>) {
    let mut from: Vec<Vec<usize>> = vec![Vec::new(); boxes];
    let mut has_edge_to = vec![false; boxes];
    for (index, edge) in edges.iter().enumerate() {
        from[edge.start].push(index);
        has_edge_to[edge.end] = true;
    }
    let mut is_upwards = vec![false; edges.len()];
    // What a search in depth is within, and what it has left.
    let (mut is_open, mut is_done) = (vec![false; boxes], vec![false; boxes]);
    let mut left = Vec::new();
    let roots = (0..boxes).filter(|root| !has_edge_to[*root]);
    for root in roots.chain(0..boxes) {
        let mut path = vec![(root, 0)];
        while let Some((at, next)) = path.pop() {
            if is_done[at] {
                continue;
            }
            is_open[at] = true;
            let Some(edge) = from[at].get(next) else {
                is_done[at] = true;
                left.push(at);
                continue;
            };
            path.push((at, next + 1));
            let end = edges[*edge].end;
            if is_open[end] && !is_done[end] {
                is_upwards[*edge] = true;
            } else {
                path.push((end, 0));
            }
        }
    }
    let mut level = vec![0; boxes];
    let mut downwards: Vec<Vec<usize>> = vec![Vec::new(); boxes];
    for (edge, is_upwards) in edges.iter().zip(&is_upwards) {
        let (upper, lower) = ends(edge, *is_upwards);
        downwards[upper].push(lower);
    }
    // A box is left after all boxes that it has edges to.
    for upper in left.into_iter().rev() {
        for lower in &downwards[upper] {
            level[*lower] = level[*lower].max(level[upper] + 2);
        }
    }
    (level, is_upwards)
}

/// The upper and the lower box of an edge.
fn ends(edge: &Edge, is_upwards: bool) -> (usize, usize) {
    if is_upwards { (edge.end, edge.start) } else { (edge.start, edge.end) }
}

/// Adds the vertices of an edge; its label is in the middle. Returns all from the upper box to the
/// lower one.
fn chain(vertices: &mut Vec<Vertex>, edge: &Edge, is_upwards: bool) -> Vec<usize> {
    let (upper, lower) = ends(edge, is_upwards);
    let (first, last) = (vertices[upper].layer, vertices[lower].layer);
    let mut chain = vec![upper];
    for layer in first + 1..last {
        let extent = if layer == label_layer(first, last) { edge.label } else { PASSING };
        chain.push(vertices.len());
        vertices.push(vertex(extent, false, layer));
    }
    chain.push(lower);
    for pair in chain.windows(2) {
        vertices[pair[0]].below.push(pair[1]);
        vertices[pair[1]].above.push(pair[0]);
    }
    chain
}

/// The layer for the label between two layers of boxes: never one of boxes.
fn label_layer(first: usize, last: usize) -> usize {
    (first.midpoint(last)) | 1
}

/// The top and the bottom of each layer.
fn heights(vertices: &[Vertex], layers: &[Vec<usize>]) -> Vec<(f64, f64)> {
    let mut top = 0.0;
    let mut heights = Vec::new();
    for layer in layers {
        let height = layer.iter().map(|at| vertices[*at].extent.height).fold(0.0, f64::max);
        heights.push((top, top + height));
        let aside = |at: &usize| {
            let vertex = &vertices[*at];
            vertex.below.iter().map(move |below| (vertices[*below].x - vertex.x).abs())
        };
        let farthest = layer.iter().flat_map(aside).fold(0.0, f64::max);
        top += height + (farthest / 5.0).clamp(LEAST_GAP, LARGEST_GAP);
    }
    heights
}

fn route(chain: &[usize], is_upwards: bool, vertices: &[Vertex], heights: &[(f64, f64)]) -> Route {
    let last = chain.len() - 1;
    let stretch = |(at, index): (usize, &usize)| {
        let vertex = &vertices[*index];
        let (top, bottom) = heights[vertex.layer];
        let edge_of_box =
            (top + bottom + if at == 0 { vertex.extent.height } else { -vertex.extent.height })
                / 2.0;
        match at {
            0 => {
                (vertex.x + port(vertices, *index, chain[1], |one| &one.below), edge_of_box, bottom)
            }
            _ if at == last => {
                let port = port(vertices, *index, chain[last - 1], |one| &one.above);
                (vertex.x + port, top, edge_of_box)
            }
            _ => (vertex.x, top, bottom),
        }
    };
    let (first, end) = (vertices[chain[0]].layer, vertices[chain[last]].layer);
    let label = label_layer(first, end);
    let (top, bottom) = heights[label];
    Route {
        stretches: chain.iter().enumerate().map(stretch).collect(),
        is_upwards,
        label: (vertices[chain[label - first]].x, (top + bottom) / 2.0),
    }
}

/// Where an edge meets a box, from its line: edges on the same side are side by side, in the order
/// of their next vertices.
fn port(vertices: &[Vertex], at: usize, next: usize, side: impl Fn(&Vertex) -> &Vec<usize>) -> f64 {
    let vertex = &vertices[at];
    let neighbors = side(vertex);
    let before = |other: &&usize| (vertices[**other].x, **other) < (vertices[next].x, next);
    let place = neighbors.iter().filter(before).count() as f64 + 0.5;
    // The left half of a box is as wide as the right one, beside which there may be a loop.
    (place / neighbors.len() as f64 - 0.5) * 1.6 * vertex.extent.left
}

#[cfg(test)]
mod tests;
