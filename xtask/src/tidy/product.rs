//! What of a file is in the product: its tokens without the items that are for tests alone.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The tokens without items under `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
pub(super) fn without_tests(tokens: TokenStream) -> TokenStream {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        if is_test_attribute(&trees[at..]) {
            at = end_of_item(&trees, at);
            continue;
        }
        kept.push(match tree {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), without_tests(group.stream()));
                inner.set_span(group.span());
                TokenTree::Group(inner)
            }
            other => other.clone(),
        });
        at += 1;
    }
    kept.into_iter().collect()
}

/// Whether an attribute begins here that leaves the next item to tests.
fn is_test_attribute(trees: &[TokenTree]) -> bool {
    let [TokenTree::Punct(punct), TokenTree::Group(group), ..] = trees else { return false };
    if punct.as_char() != '#' {
        return false;
    }
    let text: String = group.stream().to_string().split_whitespace().collect();
    text.starts_with("cfg(test") || text.starts_with("cfg(all(test")
}

/// The position after the item that an attribute at `start` belongs to.
fn end_of_item(trees: &[TokenTree], start: usize) -> usize {
    let mut at = start + 2;
    // Other attributes.
    while matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == '#') {
        at += 2;
    }
    while let Some(tree) = trees.get(at) {
        at += 1;
        match tree {
            TokenTree::Punct(punct) if punct.as_char() == ';' => break,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
            _ => {}
        }
    }
    at
}
