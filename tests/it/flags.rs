use std::{env, fs};

use crate::harness::{BINARY, World};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/flags.md");
const BEFORE: &str = "cargo test --test it flags -->\n```text\n";
const AFTER: &str = "```\n";

fn help() -> String {
    let world = World::new();
    let mut registrar = world.run(&[&BINARY, "--help"], |_| {});
    assert_eq!(registrar.exit_code(), 0);
    registrar.stdout()
}

/// `UPDATE=1` puts the present text into the document.
#[test]
fn document_holds_the_help_text() {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let (head, rest) = document.split_once(BEFORE).unwrap();
    let (shown, tail) = rest.split_once(AFTER).unwrap();
    let help = help();
    if env::var_os("UPDATE").is_some() {
        fs::write(DOCUMENT, [head, BEFORE, &help, AFTER, tail].concat()).unwrap();
    } else {
        assert_eq!(shown, help, "UPDATE=1 cargo test --test it flags");
    }
}

#[test]
fn document_describes_each_flag_of_the_help_text_in_its_order() {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let described = document.lines().filter_map(|line| {
        let name = line.strip_prefix("### `--")?;
        name.strip_suffix('`')
    });
    let help = help();
    let listed = help.lines().filter_map(|line| {
        let flag = line.strip_prefix("      --")?;
        flag.split([' ', '[']).next()
    });
    assert_eq!(described.collect::<Vec<_>>(), listed.collect::<Vec<_>>());
}
