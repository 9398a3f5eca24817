//! Enumerations: a newtype over the number, with a constant for each value.

use std::collections::HashSet;

use prost_reflect::EnumDescriptor;

use crate::comments;
use crate::names::{Scope, camel, identifier, shouty};

pub(crate) fn generate(enumeration: &EnumDescriptor, scope: &Scope<'_>, out: &mut String) {
    let (rt, name) = (scope.runtime, camel(enumeration.name()));
    let file = enumeration.parent_file();
    let fallback = format!("Enumeration `{}`.", enumeration.full_name());
    let doc = comments::doc(&file, enumeration.path(), &fallback);
    let prefix = shouty(enumeration.name()) + "_";

    let mut used = HashSet::from(["NAMES".to_owned()]);
    let (mut constants, mut names) = (String::new(), String::new());
    for value in enumeration.values() {
        let full = shouty(value.name());
        // `COLOR_RED` of `Color` is `Color::RED`.
        let short = full
            .strip_prefix(&prefix)
            .filter(|rest| rest.starts_with(char::is_alphabetic));
        let mut constant = identifier(short.unwrap_or(&full));
        let mut number = used.len();
        while !used.insert(constant.clone()) {
            constant = format!("{full}_{number}");
            number += 1;
        }
        let doc = comments::doc(&file, value.path(), &format!("`{}`.", value.name()));
        constants.push_str(&format!(
            "{doc} pub const {constant}: {name} = {name}({});\n",
            value.number()
        ));
        names.push_str(&format!("({:?}, {}),", value.name(), value.number()));
    }
    out.push_str(&format!(
        "{doc}
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct {name}(
            /// The number. The enumeration is open: a peer may send a number without a name here.
            pub i32,
        );

        impl {name} {{
            {constants}

            /// The names of its values.
            pub const NAMES: &'static {rt}::EnumLayout = &{rt}::EnumLayout {{
                name: {:?},
                values: &[{names}],
            }};
        }}

        {rt}::enumeration!({name});

        ",
        enumeration.full_name()
    ));
}
