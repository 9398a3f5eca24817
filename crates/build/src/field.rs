//! Accessors of one field, for the three types of its message.

use prost_reflect::{FieldDescriptor, Kind as ProtoKind, MessageDescriptor};
use starling_message::{Kind, Place, Presence, Shape};

use crate::comments;
use crate::error::Error;
use crate::names::{Scope, identifier};
use crate::schema::{kind_of, shape_of};

/// A field, ready to be written.
pub(crate) struct Field {
    pub(crate) descriptor: FieldDescriptor,
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
    pub(crate) place: Place,
    /// The message in it; of a map, its entry.
    pub(crate) message: Option<MessageDescriptor>,
    /// The base of the names of its methods.
    pub(crate) base: String,
    doc: String,
}

/// Methods of a message's view, mutable view and owned type.
#[derive(Default)]
pub(crate) struct Methods {
    pub(crate) view: String,
    pub(crate) mutable: String,
    pub(crate) owned: String,
}

impl Field {
    pub(crate) fn new(descriptor: &FieldDescriptor, place: Place, base: String) -> Field {
        let (kind, message) = kind_of(descriptor);
        let fallback = format!("Field `{}`.", descriptor.name());
        let file = descriptor.parent_message().parent_file();
        Field {
            kind,
            shape: shape_of(descriptor),
            place,
            message,
            base,
            doc: comments::doc(&file, descriptor.path(), &fallback),
            descriptor: descriptor.clone(),
        }
    }

    /// The methods that a field so named would have.
    pub(crate) fn method_names(descriptor: &FieldDescriptor, base: &str) -> Vec<String> {
        let (kind, _) = kind_of(descriptor);
        let mut names = vec![base.to_owned(), format!("clear_{base}")];
        names.push(format!("with_{base}"));
        if shape_of(descriptor) != Shape::Singular {
            names.push(format!("{base}_mut"));
            return names;
        }
        names.push(format!("set_{base}"));
        if descriptor.supports_presence() {
            names.extend([format!("has_{base}"), format!("{base}_opt")]);
        }
        match kind {
            Kind::Message => names.push(format!("{base}_mut")),
            Kind::Bytes => {
                names.extend([format!("set_{base}_bytes"), format!("with_{base}_bytes")]);
            }
            _ => {}
        }
        names
    }

    /// Type arguments of `Element` for what the field holds, one for each element.
    fn element(&self, scope: &Scope<'_>) -> String {
        element_of(&self.descriptor, scope)
    }

    /// Type and expression of the singular value, read through `self.0`.
    pub(crate) fn read(&self, scope: &Scope<'_>) -> (String, String) {
        let offset = self.place.offset;
        match &self.message {
            Some(message) => {
                let (rt, owned) = (scope.runtime, scope.message(message, ""));
                let child =
                    format!("self.0.child({offset}).unwrap_or(<{rt}::Reader<'_>>::empty())");
                let view = format!("{}<'a>", scope.message(message, "View"));
                (
                    view,
                    format!("<{owned} as {rt}::Message>::view_of({child})"),
                )
            }
            None => match self.kind {
                Kind::String => ("&'a str".to_owned(), format!("self.0.text({offset})")),
                Kind::Bytes => ("&'a [u8]".to_owned(), format!("self.0.bytes({offset})")),
                _ => (self.element(scope), format!("self.0.scalar({offset})")),
            },
        }
    }

    fn has(&self) -> Option<String> {
        Some(match self.place.presence {
            Presence::Implicit => return None,
            Presence::Reference => format!("self.0.reference({}).0 != 0", self.place.offset),
            Presence::Bit { byte, mask } => format!("self.0.bit({byte}, {mask})"),
            Presence::Oneof {
                discriminant, case, ..
            } => {
                format!("self.0.scalar::<u8>({discriminant}) == {case}")
            }
        })
    }

    pub(crate) fn write(&self, scope: &Scope<'_>, out: &mut Methods) {
        match self.shape {
            Shape::Singular => self.write_singular(scope, out),
            Shape::Repeated => {
                let element = self.element(scope);
                let rt = scope.runtime;
                self.write_many(&format!("{rt}::Repeated"), &element, out);
                let (item, add) = match &self.message {
                    Some(_) => (
                        format!("&'v {element}"),
                        "for value in values { this.push_view(value.view()); }",
                    ),
                    None => (
                        format!("<{element} as {rt}::Element>::View<'v>"),
                        "this.extend(values);",
                    ),
                };
                self.write_with_many(&item, add, out);
            }
            Shape::Map => {
                let entry = self.message.as_ref().expect("a map has entries");
                let [key, value] = [entry.map_entry_key_field(), entry.map_entry_value_field()]
                    .map(|field| element_of(&field, scope));
                let rt = scope.runtime;
                self.write_many(&format!("{rt}::Map"), &format!("{key}, {value}"), out);
                let (item, add) = match entry.map_entry_value_field().kind() {
                    ProtoKind::Message(_) => (
                        format!("&'v {value}"),
                        "this.get_or_default(key).copy_from(value.view());",
                    ),
                    _ => (
                        format!("<{value} as {rt}::Element>::View<'v>"),
                        "this.insert(key, value);",
                    ),
                };
                self.write_with_many(
                    &format!("(<{key} as {rt}::Element>::View<'v>, {item})"),
                    &format!("for (key, value) in values {{ {add} }}"),
                    out,
                );
            }
        }
    }

    /// Appends to a repeated field or a map in one expression; `add` puts `values` into `this`.
    fn write_with_many(&self, item: &str, add: &str, out: &mut Methods) {
        let (base, name) = (&self.base, self.descriptor.name());
        out.owned.push_str(&format!(
            "/// Adds to `{name}`. For building a message in one expression.
            #[must_use] pub fn with_{base}<'v>(
                mut self, values: impl ::core::iter::IntoIterator<Item = {item}>,
            ) -> Self {{
                let mut this = self.{base}_mut();
                {add}
                self
            }}\n"
        ));
    }

    fn write_many(&self, prefix: &str, arguments: &str, out: &mut Methods) {
        let Field {
            base, doc, place, ..
        } = self;
        let (offset, get) = (place.offset, identifier(base));
        let name = self.descriptor.name();
        out.view.push_str(&format!(
            "{doc} #[inline] pub fn {get}(self) -> {prefix}View<'a, {arguments}> {{
                {prefix}View::of(self.0, {offset})
            }}\n"
        ));
        out.mutable.push_str(&format!(
            "/// `{name}`, for writing.
            #[inline] pub fn {base}_mut(&mut self) -> {prefix}Mut<'_, {arguments}> {{
                {prefix}Mut::of(self.0.reborrow(), {offset})
            }}
            /// Removes all of `{name}`.
            pub fn clear_{base}(&mut self) {{ self.0.clear_reference({offset}); }}\n"
        ));
        out.owned.push_str(&format!(
            "{doc} #[inline] pub fn {get}(&self) -> {prefix}View<'_, {arguments}> {{
                self.view().{get}()
            }}
            /// `{name}`, for writing.
            #[inline] pub fn {base}_mut(&mut self) -> {prefix}Mut<'_, {arguments}> {{
                {prefix}Mut::of(self.arena.root(), {offset})
            }}
            /// Removes all of `{name}`.
            pub fn clear_{base}(&mut self) {{ self.as_mut().clear_{base}(); }}\n"
        ));
    }

    fn write_singular(&self, scope: &Scope<'_>, out: &mut Methods) {
        let Field {
            base, doc, kind, ..
        } = self;
        let (name, get) = (self.descriptor.name(), identifier(base));
        let (of_a, read) = self.read(scope);
        let of_self = of_a.replace("'a", "'_");
        let has = self.has();

        let guarded = match &has {
            Some(_) if !matches!(self.place.presence, Presence::Reference) => match kind {
                Kind::String => format!("if self.has_{base}() {{ {read} }} else {{ \"\" }}"),
                Kind::Bytes => format!("if self.has_{base}() {{ {read} }} else {{ &[] }}"),
                Kind::Message => format!("self.{base}_opt().unwrap_or({})", self.absent(scope)),
                _ => format!(
                    "if self.has_{base}() {{ {read} }} else {{ ::core::default::Default::default() }}"
                ),
            },
            _ => read.clone(),
        };
        out.view.push_str(&format!(
            "{doc} #[inline] pub fn {get}(self) -> {of_a} {{ {guarded} }}\n"
        ));
        out.owned.push_str(&format!(
            "{doc} #[inline] pub fn {get}(&self) -> {of_self} {{ self.view().{get}() }}\n"
        ));
        if let Some(has) = has {
            let is_set = format!("/// Whether `{name}` is set.\n#[inline] pub fn has_{base}");
            let opt = format!("/// `{name}`, if it is set.\n#[inline] pub fn {base}_opt");
            out.view.push_str(&format!(
                "{is_set}(self) -> bool {{ {has} }}
                {opt}(self) -> ::core::option::Option<{of_a}> {{
                    if self.has_{base}() {{ ::core::option::Option::Some({read}) }}
                    else {{ ::core::option::Option::None }}
                }}\n"
            ));
            out.owned.push_str(&format!(
                "{is_set}(&self) -> bool {{ self.view().has_{base}() }}
                {opt}(&self) -> ::core::option::Option<{of_self}> {{ self.view().{base}_opt() }}\n"
            ));
        }
        self.write_setters(scope, out);
    }

    /// An empty message.
    fn absent(&self, scope: &Scope<'_>) -> String {
        let message = self.message.as_ref().expect("the field holds a message");
        let (rt, owned) = (scope.runtime, scope.message(message, ""));
        format!("<{owned} as {rt}::Message>::view_of(<{rt}::Reader<'_>>::empty())")
    }

    /// A statement that marks the field as set.
    fn mark(&self) -> String {
        match self.place.presence {
            Presence::Implicit | Presence::Reference => String::new(),
            Presence::Bit { byte, mask } => format!("self.0.set_bit({byte}, {mask}, true);"),
            Presence::Oneof {
                discriminant, case, ..
            } => {
                let (offset, size) = (self.place.offset, self.kind.slot_size());
                format!("self.0.set_case({discriminant}, {case}, {offset}, {size});")
            }
        }
    }

    fn unset(&self) -> String {
        let Field {
            base, place, kind, ..
        } = self;
        let offset = place.offset;
        let zero = match kind {
            kind if kind.is_reference() => format!("self.0.clear_reference({offset});"),
            Kind::Enum => format!("self.0.set_scalar::<i32>({offset}, 0);"),
            Kind::Bool => format!("self.0.set_scalar({offset}, false);"),
            Kind::Float | Kind::Double => {
                format!(
                    "self.0.set_scalar::<{}>({offset}, 0.0);",
                    scalar_type(*kind)
                )
            }
            kind => format!("self.0.set_scalar::<{}>({offset}, 0);", scalar_type(*kind)),
        };
        match place.presence {
            Presence::Implicit | Presence::Reference => zero,
            Presence::Bit { byte, mask } => {
                format!("self.0.set_bit({byte}, {mask}, false); {zero}")
            }
            Presence::Oneof { discriminant, .. } => format!(
                "if self.view().has_{base}() {{
                    self.0.set_case({discriminant}, 0, {offset}, {});
                }}",
                kind.slot_size()
            ),
        }
    }

    /// The method that returns a message field for writing.
    fn write_message_mut(&self, message: &MessageDescriptor, scope: &Scope<'_>, out: &mut Methods) {
        let (rt, base, name) = (scope.runtime, &self.base, self.descriptor.name());
        let (offset, mark) = (self.place.offset, self.mark());
        let owned = scope.message(message, "");
        let mutable = scope.message(message, "Mut");
        let head = format!(
            "/// `{name}`, for writing. This sets the field.
            #[inline] pub fn {base}_mut(&mut self) -> {mutable}<'_>"
        );
        out.mutable.push_str(&format!(
            "{head} {{
                {mark}
                let stride = <{owned} as {rt}::Message>::LAYOUT.stride();
                <{owned} as {rt}::Message>::mut_of(self.0.reborrow().child({offset}, stride))
            }}\n"
        ));
        out.owned.push_str(&format!(
            "{head} {{ {} }}\n",
            format_args!(
                "let {}this = {rt}::Writer::from_arena(&mut self.arena);
                {}
                let stride = <{owned} as {rt}::Message>::LAYOUT.stride();
                <{owned} as {rt}::Message>::mut_of(this.child({offset}, stride))",
                if mark.is_empty() { "" } else { "mut " },
                mark.replace("self.0", "this")
            )
        ));
    }

    fn write_setters(&self, scope: &Scope<'_>, out: &mut Methods) {
        let Field { base, kind, .. } = self;
        let (rt, name, offset) = (scope.runtime, self.descriptor.name(), self.place.offset);
        let (mark, unset) = (self.mark(), self.unset());
        let explicit = self.place.presence != Presence::Implicit;
        let mut setter = |doc: &str, method: &str, value: &str, body: &str| {
            let with = method.replacen("set_", "with_", 1);
            let head = format!("/// {doc}\n#[inline] pub fn {method}(&mut self, value: {value})");
            out.mutable
                .push_str(&format!("{head} {{ {mark} {body} }}\n"));
            out.owned.push_str(&format!(
                "{head} {{ self.as_mut().{method}(value); }}
                /// {doc} For building a message in one expression.
                #[inline] #[must_use] pub fn {with}(mut self, value: {value}) -> Self {{
                    self.{method}(value); self
                }}\n"
            ));
        };
        let set = format!("set_{base}");
        match (kind, &self.message) {
            (_, Some(message)) => {
                let (owned, view) = (scope.message(message, ""), scope.message(message, "View"));
                let body = format!(
                    "self.0.set_message({offset}, <{owned} as {rt}::Message>::LAYOUT,
                        {rt}::MessageView::reader(value));"
                );
                setter(
                    &format!("Sets `{name}` to a copy."),
                    &set,
                    &format!("{view}<'_>"),
                    &body,
                );
                self.write_message_mut(message, scope, out);
            }
            (Kind::String, _) => {
                let body = format!("self.0.set_bytes({offset}, value.as_bytes(), {explicit});");
                setter(&format!("Sets `{name}`."), &set, "&str", &body);
            }
            (Kind::Bytes, _) => {
                let body = format!("self.0.set_bytes({offset}, value, {explicit});");
                setter(&format!("Sets `{name}` to a copy."), &set, "&[u8]", &body);
                let body = format!("self.0.set_shared({offset}, value, {explicit});");
                let doc = format!(
                    "Sets `{name}` without copying it. If another field of the whole message is already
                    /// held by reference, it copies."
                );
                setter(
                    &doc,
                    &format!("{set}_bytes"),
                    &format!("{rt}::Bytes"),
                    &body,
                );
            }
            _ => {
                let body = format!("self.0.set_scalar({offset}, value);");
                setter(
                    &format!("Sets `{name}`."),
                    &set,
                    &self.element(scope),
                    &body,
                );
            }
        }
        let head = format!("/// Unsets `{name}`.\npub fn clear_{base}(&mut self)");
        out.mutable.push_str(&format!("{head} {{ {unset} }}\n"));
        out.owned
            .push_str(&format!("{head} {{ self.as_mut().clear_{base}(); }}\n"));
    }
}

/// Refuses a field whose type, or whose map's value type, has no code.
pub(crate) fn check_type(field: &FieldDescriptor, scope: &Scope<'_>) -> Result<(), Error> {
    let kind = match field.kind() {
        ProtoKind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
        kind => kind,
    };
    match kind {
        ProtoKind::Message(message) => {
            scope.check_code(field, &message.parent_file(), message.full_name())
        }
        ProtoKind::Enum(enumeration) => {
            scope.check_code(field, &enumeration.parent_file(), enumeration.full_name())
        }
        _ => Ok(()),
    }
}

/// The Rust type of a numeric kind or `bool`.
fn scalar_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "bool",
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 | Kind::Enum => "i32",
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "i64",
        Kind::Uint32 | Kind::Fixed32 => "u32",
        Kind::Uint64 | Kind::Fixed64 => "u64",
        Kind::Float => "f32",
        Kind::Double => "f64",
        Kind::String => "str",
        Kind::Bytes | Kind::Message => "[u8]",
    }
}

/// The `Element` type of a field's values.
fn element_of(field: &FieldDescriptor, scope: &Scope<'_>) -> String {
    match field.kind() {
        ProtoKind::Message(message) => scope.message(&message, ""),
        ProtoKind::Enum(enumeration) => scope.enumeration(&enumeration),
        _ => scalar_type(kind_of(field).0).to_owned(),
    }
}
