//! The parts that all SVG pictures of the command share: size and background, title, colours.

/// The colours of curves and bars. They differ in lightness as well as in hue, for readers who do
/// not tell the hues apart.
pub(super) const BLUE: &str = "#0b5cad";
pub(super) const RED: &str = "#d1495b";
pub(super) const GREEN: &str = "#17a05d";
pub(super) const PURPLE: &str = "#8d5fc2";
pub(super) const AMBER: &str = "#c98a1b";

/// The beginning of a picture of this size, in pixels: the opening tag with the font of its texts,
/// and a white background.
pub(super) fn open(width: f64, height: f64) -> String {
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
 width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="#222">
<rect width="100%" height="100%" fill="#fff"/>
"##
    )
}

/// A picture's title, from `(x, y)` on to the right.
pub(super) fn title((x, y): (f64, f64), size: u32, text: &str) -> String {
    format!(
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" font-weight=\"bold\">{}</text>\n",
        escaped(text)
    )
}

/// Text as it may stand between tags.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_holds_no_tags() {
        assert!(title((1.0, 2.0), 16, "a < b & c").contains(">a &lt; b &amp; c<"));
    }

    #[test]
    fn a_picture_begins_with_its_size() {
        let begin = open(300.0, 200.0);
        assert!(begin.starts_with("<svg "));
        assert!(begin.contains("viewBox=\"0 0 300 200\"\n width=\"300\" height=\"200\""));
    }
}
