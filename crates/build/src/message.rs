//! Messages: layout table, owned type, view, mutable view, oneofs, and nested declarations.

use std::collections::HashSet;

use prost_reflect::{FieldDescriptor, Kind as ProtoKind, MessageDescriptor, OneofDescriptor};
use starling_message::{Plan, Presence, Shape, plan};

use crate::comments;
use crate::enumeration;
use crate::error::{Error, unsupported};
use crate::field::{Field, Methods, check_type};
use crate::names::{
    RUNTIME, Scope, UsedNames, camel, identifier, layout_name, message_module, snake,
};
use crate::schema::{fields_of, of_message};

/// Methods that every message type has.
const RESERVED: [&str; 15] = [
    "new",
    "view",
    "as_mut",
    "to_owned",
    "clone",
    "clear",
    "copy_from",
    "arena",
    "arena_mut",
    "into_arena",
    "parts",
    "reader",
    "eq",
    "ne",
    "fmt",
];

pub(crate) fn generate(
    message: &MessageDescriptor,
    scope: &Scope<'_>,
    names: &mut UsedNames,
    out: &mut String,
) -> Result<(), Error> {
    for field in message.fields() {
        check_type(&field, scope)?;
    }
    let (file, full_name) = (message.parent_file(), message.full_name());
    let (plan, fields) = plan_of(message)?;
    layout(message, scope, &plan, &fields, out)?;
    if message.is_map_entry() {
        return names.add(scope, message, layout_name(message));
    }

    let (rt, name) = (scope.runtime, camel(message.name()));
    for suffix in ["", "View", "Mut"] {
        names.add(scope, message, format!("{name}{suffix}"))?;
    }
    names.add(scope, message, layout_name(message))?;

    let mut methods = Methods::default();
    for field in &fields {
        field.write(scope, &mut methods);
    }
    let mut kinds = String::new();
    let mut used = method_names(&fields);
    for oneof in message.oneofs().filter(|oneof| !oneof.is_synthetic()) {
        let kind = format!("{name}{}", camel(oneof.name()));
        names.add(scope, &oneof, kind.clone())?;
        write_oneof(
            &oneof,
            &kind,
            &fields,
            scope,
            &mut used,
            &mut methods,
            &mut kinds,
        );
    }

    let doc = comments::doc(&file, message.path(), &format!("Message `{full_name}`."));
    let Methods {
        view,
        mutable,
        owned,
    } = methods;
    out.push_str(&format!(
        "{doc}
        #[derive(Clone)]
        pub struct {name} {{ arena: {rt}::Arena }}

        /// A [`{name}`], for reading.
        #[derive(Clone, Copy)]
        pub struct {name}View<'a>({rt}::Reader<'a>);

        /// A [`{name}`], for writing.
        pub struct {name}Mut<'a>({rt}::Writer<'a>);

        {kinds}

        {rt}::message!({name}, {name}View, {name}Mut, {layout});\n\n",
        layout = layout_name(message),
    ));
    for (target, methods) in [
        (format!("<'a> {name}View<'a>"), view),
        (format!(" {name}Mut<'_>"), mutable),
        (format!(" {name}"), owned),
    ] {
        if !methods.is_empty() {
            out.push_str(&format!("impl{target} {{ {methods} }}\n\n"));
        }
    }
    within(message, scope, names, out)
}

/// Declarations within a message go to a module named after it. Layouts of map entries are beside the
/// message.
fn within(
    message: &MessageDescriptor,
    scope: &Scope<'_>,
    names: &mut UsedNames,
    out: &mut String,
) -> Result<(), Error> {
    let module = message_module(message);
    let (inner, mut items) = (scope.nested(&module), String::new());
    for enumeration in message.child_enums() {
        names.add(&inner, &enumeration, camel(enumeration.name()))?;
        enumeration::generate(&enumeration, &inner, &mut items);
    }
    for child in message.child_messages() {
        generate(&child, &inner, names, &mut items)?;
    }
    if !items.is_empty() {
        names.add_module(scope, message, module.clone())?;
        let name = camel(message.name());
        out.push_str(&format!(
            "/// Declarations within [`{name}`].\npub mod {module} {{ use super::{RUNTIME}; {items} }}\n\n"
        ));
    }
    Ok(())
}

/// The message's layout, and its fields by number.
fn plan_of(message: &MessageDescriptor) -> Result<(Plan, Vec<Field>), Error> {
    let schema = fields_of(message)?;
    let plan_fields: Vec<_> = schema.iter().map(|field| field.plan_field()).collect();
    let plan = plan(&plan_fields).map_err(|error| unsupported(message, error.to_string()))?;
    let mut used: HashSet<String> = RESERVED.iter().map(|name| (*name).to_owned()).collect();
    let fields = plan
        .places
        .iter()
        .map(|place| {
            let descriptor = message
                .get_field(place.number)
                .expect("planned from these fields");
            let base = base_name(&descriptor, &used);
            used.extend(Field::method_names(&descriptor, &base));
            Field::new(&descriptor, *place, base)
        })
        .collect();
    Ok((plan, fields))
}

/// The base name of a field's methods: the field's name. While a method would clash with one of an
/// earlier field, the field's number is appended.
fn base_name(field: &FieldDescriptor, used: &HashSet<String>) -> String {
    let mut name = snake(field.name());
    while Field::method_names(field, &name)
        .iter()
        .any(|name| used.contains(name))
    {
        name = format!("{name}_{}", field.number());
    }
    name
}

fn method_names(fields: &[Field]) -> HashSet<String> {
    let reserved = RESERVED.iter().map(|name| (*name).to_owned());
    let of_field = |field: &Field| Field::method_names(&field.descriptor, &field.base);
    reserved.chain(fields.iter().flat_map(of_field)).collect()
}

fn layout(
    message: &MessageDescriptor,
    scope: &Scope<'_>,
    plan: &Plan,
    fields: &[Field],
    out: &mut String,
) -> Result<(), Error> {
    let rt = scope.runtime;
    let cow = "::std::borrow::Cow::Borrowed";
    let mut table = String::new();
    for field in fields {
        let descriptor = &field.descriptor;
        let presence = match field.place.presence {
            Presence::Implicit => "Implicit".to_owned(),
            Presence::Reference => "Reference".to_owned(),
            Presence::Bit { byte, mask } => format!("Bit {{ byte: {byte}, mask: {mask} }}"),
            Presence::Oneof {
                discriminant,
                case,
                cases,
            } => {
                format!("Oneof {{ discriminant: {discriminant}, case: {case}, cases: {cases} }}")
            }
        };
        let nested = match &field.message {
            None => format!("{rt}::Nested::None"),
            Some(message) => format!("{rt}::Nested::Known(&{})", scope.layout(message)),
        };
        let enumeration = match descriptor.kind() {
            ProtoKind::Enum(enumeration) => {
                format!(
                    "::core::option::Option::Some({}::NAMES)",
                    scope.enumeration(&enumeration)
                )
            }
            _ => "::core::option::Option::None".to_owned(),
        };
        table.push_str(&format!(
            "{rt}::FieldLayout {{
                name: {cow}({:?}), json_name: {cow}({:?}), number: {}, kind: {rt}::Kind::{:?},
                shape: {rt}::Shape::{:?}, presence: {rt}::Presence::{presence}, offset: {},
                nested: {nested}, enumeration: {enumeration},
            }},",
            descriptor.name(),
            descriptor.json_name(),
            descriptor.number(),
            field.kind,
            field.shape,
            field.place.offset,
        ));
    }
    out.push_str(&format!(
        "#[doc(hidden)]
        pub static {}: {rt}::MessageLayout = {rt}::MessageLayout {{
            name: {cow}({:?}),
            size: {},
            fields: {cow}(&[{table}]),
            schema_hash: {:#018x},
        }};\n\n",
        layout_name(message),
        message.full_name(),
        plan.size,
        of_message(message)?.hash(),
    ));
    Ok(())
}

fn write_oneof(
    oneof: &OneofDescriptor,
    kind: &str,
    fields: &[Field],
    scope: &Scope<'_>,
    used: &mut HashSet<String>,
    methods: &mut Methods,
    kinds: &mut String,
) {
    let file = oneof.parent_file();
    let fallback = format!("The cases of `{}`.", oneof.full_name());
    let doc = comments::doc(&file, oneof.path(), &fallback);
    let mut members: Vec<&Field> = Vec::new();
    for field in fields {
        debug_assert!(
            field.shape == Shape::Singular || field.descriptor.containing_oneof().is_none()
        );
        if field.descriptor.containing_oneof().as_ref() == Some(oneof) {
            members.push(field);
        }
    }
    let mut base = snake(oneof.name());
    while used.contains(&base) || used.contains(&format!("clear_{base}")) {
        base.push_str("_oneof");
    }
    used.insert(base.clone());
    used.insert(format!("clear_{base}"));

    let (mut variants, mut arms) = (String::new(), String::new());
    let (mut at, mut size) = ((0, 0), 0);
    let mut borrows = false;
    let mut names = HashSet::new();
    for field in &members {
        let Presence::Oneof {
            discriminant, case, ..
        } = field.place.presence
        else {
            continue;
        };
        at = (discriminant, field.place.offset);
        size = size.max(field.kind.slot_size());
        let mut variant = camel(field.descriptor.name());
        if !names.insert(variant.clone()) {
            variant = format!("{variant}{}", field.descriptor.number());
        }
        let (of_a, read) = field.read(scope);
        borrows |= of_a.contains("'a");
        let doc = comments::lines(&format!("`{}`.", field.descriptor.name()));
        variants.push_str(&format!("{doc} {variant}({of_a}),\n"));
        arms.push_str(&format!(
            "{case} => ::core::option::Option::Some({kind}::{variant}({read})),\n"
        ));
    }
    let (discriminant, offset) = at;
    let lifetime = if borrows { "<'a>" } else { "" };
    kinds.push_str(&format!(
        "{doc} #[derive(Clone, Copy, Debug, PartialEq)]\npub enum {kind}{lifetime} {{ {variants} }}\n\n"
    ));
    let (get, name) = (identifier(&base), oneof.name());
    methods.view.push_str(&format!(
        "/// The case of `{name}` that is set.
        #[inline] pub fn {get}(self) -> ::core::option::Option<{kind}{lifetime}> {{
            match self.0.scalar::<u8>({discriminant}) {{ {arms} _ => ::core::option::Option::None }}
        }}\n"
    ));
    methods.owned.push_str(&format!(
        "/// The case of `{name}` that is set.
        #[inline] pub fn {get}(&self) -> ::core::option::Option<{kind}{}> {{ self.view().{get}() }}
        /// Unsets `{name}`.
        pub fn clear_{base}(&mut self) {{ self.as_mut().clear_{base}(); }}\n",
        lifetime.replace("'a", "'_"),
    ));
    methods.mutable.push_str(&format!(
        "/// Unsets `{name}`.
        pub fn clear_{base}(&mut self) {{ self.0.set_case({discriminant}, 0, {offset}, {size}); }}\n"
    ));
}
