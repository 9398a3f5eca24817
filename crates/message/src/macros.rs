//! Macros for the code that all generated types share, so that generated files hold only the rest.
//!
//! Enumerations are open, so they are newtypes over their number rather than Rust `enum`s.
//!
//! Every name is a full path: a bare `None` could be an enumeration of that name.

/// Defines the shared part of a generated enumeration type.
#[doc(hidden)]
#[macro_export]
macro_rules! enumeration {
    ($type:ident) => {
        impl ::core::convert::From<i32> for $type {
            fn from(number: i32) -> Self {
                $type(number)
            }
        }

        impl ::core::convert::From<$type> for i32 {
            fn from(value: $type) -> i32 {
                value.0
            }
        }

        impl ::core::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match Self::NAMES.name_of(self.0) {
                    ::core::option::Option::Some(name) => f.write_str(name),
                    ::core::option::Option::None => write!(f, "{}({})", stringify!($type), self.0),
                }
            }
        }

        impl $crate::Scalar for $type {
            const WIDTH: usize = 4;
            #[inline]
            fn from_le(bytes: &[u8]) -> Self {
                $type(<i32 as $crate::Scalar>::from_le(bytes))
            }
            #[inline]
            fn to_le(self, bytes: &mut [u8]) {
                <i32 as $crate::Scalar>::to_le(self.0, bytes);
            }
        }

        impl $crate::Element for $type {
            type View<'a> = $type;
            const STRIDE: u32 = 4;
            const SLOT: u32 = 4;
            #[inline]
            fn read_element(reader: $crate::Reader<'_>) -> $type {
                reader.scalar(0)
            }
            #[inline]
            fn read_field(reader: $crate::Reader<'_>, offset: u32) -> $type {
                reader.scalar(offset)
            }
        }

        impl $crate::Value for $type {
            #[inline]
            fn write(arena: &mut $crate::Arena, slot: u32, value: $type) {
                arena.write(slot, value);
            }
        }
    };
}

/// Defines the shared part of a generated message type: the owned type, its two views and their
/// conversions. Typed accessors are generated beside it.
#[doc(hidden)]
#[macro_export]
macro_rules! message {
    ($owned:ident, $view:ident, $mut:ident, $layout:ident) => {
        impl $owned {
            /// An empty message.
            #[inline]
            pub fn new() -> Self {
                Self {
                    arena: $crate::Arena::new(&$layout),
                }
            }

            /// The message for reading.
            #[inline]
            pub fn view(&self) -> $view<'_> {
                $view(self.arena.reader())
            }

            /// The message for writing.
            #[inline]
            pub fn as_mut(&mut self) -> $mut<'_> {
                $mut(self.arena.root())
            }
        }

        impl ::core::default::Default for $owned {
            fn default() -> Self {
                Self::new()
            }
        }

        impl ::core::cmp::PartialEq for $owned {
            fn eq(&self, other: &Self) -> bool {
                $crate::reflect::equal(&$layout, self.arena.reader(), other.arena.reader())
            }
        }

        impl ::core::fmt::Debug for $owned {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $crate::reflect::debug(&$layout, self.arena.reader(), f)
            }
        }

        impl ::core::fmt::Debug for $view<'_> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $crate::reflect::debug(&$layout, self.0, f)
            }
        }

        impl ::core::fmt::Debug for $mut<'_> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $crate::reflect::debug(&$layout, self.0.reader(), f)
            }
        }

        impl ::core::cmp::PartialEq<$view<'_>> for $view<'_> {
            fn eq(&self, other: &$view<'_>) -> bool {
                $crate::reflect::equal(&$layout, self.0, other.0)
            }
        }

        impl<'a> $crate::MessageView<'a> for $view<'a> {
            #[inline]
            fn reader(self) -> $crate::Reader<'a> {
                self.0
            }
        }

        impl $view<'_> {
            /// An owned copy.
            pub fn to_owned(self) -> $owned {
                <$owned as $crate::Message>::from_view(self)
            }
        }

        impl $mut<'_> {
            /// The message for reading.
            #[inline]
            pub fn view(&self) -> $view<'_> {
                $view(self.0.reader())
            }

            /// Makes the whole message a copy of `view`.
            pub fn copy_from(&mut self, view: $view<'_>) {
                self.0.copy_from(&$layout, view.0);
            }

            /// The same message, borrowed for a shorter time.
            #[inline]
            pub fn as_mut(&mut self) -> $mut<'_> {
                $mut(self.0.reborrow())
            }
        }

        impl $crate::Message for $owned {
            type View<'a> = $view<'a>;
            type Mut<'a> = $mut<'a>;
            const LAYOUT: &'static $crate::MessageLayout = &$layout;

            #[inline]
            fn from_arena(arena: $crate::Arena) -> Self {
                Self { arena }
            }
            #[inline]
            fn arena(&self) -> &$crate::Arena {
                &self.arena
            }
            #[inline]
            fn arena_mut(&mut self) -> &mut $crate::Arena {
                &mut self.arena
            }
            #[inline]
            fn into_arena(self) -> $crate::Arena {
                self.arena
            }
            #[inline]
            fn view_of(reader: $crate::Reader<'_>) -> $view<'_> {
                $view(reader)
            }
            #[inline]
            fn mut_of(writer: $crate::Writer<'_>) -> $mut<'_> {
                $mut(writer)
            }
        }
    };
}
