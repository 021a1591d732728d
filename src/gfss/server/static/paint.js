// Painting into labels: plain functions on one byte per pixel, and the layers that show them.

export const KEEP = 254; // in a patch: this pixel stays as it is
export const VOID = 255;

// A picture of class values that can be drawn onto a canvas.
export class Layer {
  constructor(width, height, data = new Uint8Array(width * height), outlined = false) {
    this.width = width;
    this.height = height;
    this.data = data;
    this.rim = outlined ? Math.max(1, Math.round(Math.max(width, height) / 220)) : 0; // width of the outline
    this.canvas = document.createElement("canvas");
    this.canvas.width = width;
    this.canvas.height = height;
    this.context = this.canvas.getContext("2d");
    this.colours = new Map();
  }

  // colours: value -> [red, green, blue]; values that are not in it are not shown
  colour(colours) {
    this.colours = colours;
    this.draw();
  }

  draw(left = 0, top = 0, width = this.width, height = this.height) {
    if (this.rim) {
      // the outline of what lies beside the rectangle may change too
      const right = Math.min(this.width, left + width + this.rim), bottom = Math.min(this.height, top + height + this.rim);
      left = Math.max(0, left - this.rim);
      top = Math.max(0, top - this.rim);
      width = right - left;
      height = bottom - top;
    }
    if (width <= 0 || height <= 0) return;
    const picture = this.context.createImageData(width, height), out = picture.data;
    const table = new Uint8Array(256 * 4);
    for (const [value, [r, g, b]] of this.colours) table.set([r, g, b, 255], value * 4);
    for (let y = 0, at = 0; y < height; y++) {
      let from = (top + y) * this.width + left;
      for (let x = 0; x < width; x++, from++, at += 4) {
        const value = this.data[from];
        if (value === 0 || table[value * 4 + 3] === 0) continue;
        out[at] = table[value * 4];
        out[at + 1] = table[value * 4 + 1];
        out[at + 2] = table[value * 4 + 2];
        out[at + 3] = this.rim && !this.#isEdge(from, left + x, top + y) ? 120 : 255;
      }
    }
    this.context.putImageData(picture, left, top);
  }

  #isEdge(at, x, y) {
    const { data, width, height, rim } = this, value = data[at];
    return x < rim || y < rim || x >= width - rim || y >= height - rim || data[at - rim] !== value ||
      data[at + rim] !== value || data[at - rim * width] !== value || data[at + rim * width] !== value;
  }

  // Puts a patch over the data; `which` is "before" or "after".
  apply(patch, which) {
    const values = patch[which];
    for (let y = 0, i = 0; y < patch.height; y++) {
      let at = (patch.top + y) * this.width + patch.left;
      for (let x = 0; x < patch.width; x++, at++, i++) if (values[i] !== KEEP) this.data[at] = values[i];
    }
    this.draw(patch.left, patch.top, patch.width, patch.height);
  }
}

// Collects what one stroke changes, so that it can be sent, undone and done again.
export class Stroke {
  constructor(layer) {
    this.layer = layer;
    this.old = layer.data.slice();
    this.left = this.top = Infinity;
    this.right = this.bottom = -Infinity;
  }

  touch(left, top, right, bottom) {
    left = Math.max(0, left);
    top = Math.max(0, top);
    right = Math.min(this.layer.width, right);
    bottom = Math.min(this.layer.height, bottom);
    if (right <= left || bottom <= top) return;
    this.left = Math.min(this.left, left);
    this.top = Math.min(this.top, top);
    this.right = Math.max(this.right, right);
    this.bottom = Math.max(this.bottom, bottom);
    this.layer.draw(left, top, right - left, bottom - top);
  }

  // The patch, or null if nothing changed.
  end() {
    if (this.right <= this.left) return null;
    const { left, top } = this, width = this.right - left, height = this.bottom - top;
    const before = new Uint8Array(width * height).fill(KEEP), after = new Uint8Array(width * height).fill(KEEP);
    let changed = false;
    for (let y = 0, i = 0; y < height; y++) {
      let at = (top + y) * this.layer.width + left;
      for (let x = 0; x < width; x++, at++, i++) {
        if (this.old[at] === this.layer.data[at]) continue;
        before[i] = this.old[at];
        after[i] = this.layer.data[at];
        changed = true;
      }
    }
    return changed ? { left, top, width, height, before, after } : null;
  }
}

// A line as thick as the brush, from one point to another.
export function paintLine(stroke, from, to, radius, value) {
  const { data, width, height } = stroke.layer;
  const left = Math.max(0, Math.floor(Math.min(from.x, to.x) - radius)), top = Math.max(0, Math.floor(Math.min(from.y, to.y) - radius));
  const right = Math.min(width, Math.ceil(Math.max(from.x, to.x) + radius) + 1), bottom = Math.min(height, Math.ceil(Math.max(from.y, to.y) + radius) + 1);
  const dx = to.x - from.x, dy = to.y - from.y, length = dx * dx + dy * dy || 1, reach = Math.max(radius, 0.71) ** 2;
  for (let y = top; y < bottom; y++) {
    for (let x = left; x < right; x++) {
      const px = x + 0.5 - from.x, py = y + 0.5 - from.y;
      const along = Math.max(0, Math.min(1, (px * dx + py * dy) / length));
      if ((px - along * dx) ** 2 + (py - along * dy) ** 2 <= reach) data[y * width + x] = value;
    }
  }
  stroke.touch(left, top, right, bottom);
}

// Everything inside a polygon (even-odd rule).
export function paintPolygon(stroke, points, value) {
  const { data, width, height } = stroke.layer;
  const top = Math.max(0, Math.floor(Math.min(...points.map((p) => p.y)))), bottom = Math.min(height, Math.ceil(Math.max(...points.map((p) => p.y))));
  for (let y = top; y < bottom; y++) {
    const middle = y + 0.5, crossings = [];
    points.forEach((a, i) => {
      const b = points[(i + 1) % points.length];
      if (a.y <= middle !== b.y <= middle) crossings.push(a.x + ((middle - a.y) / (b.y - a.y)) * (b.x - a.x));
    });
    crossings.sort((a, b) => a - b);
    for (let i = 0; i + 1 < crossings.length; i += 2) {
      const from = Math.max(0, Math.round(crossings[i])), to = Math.min(width, Math.round(crossings[i + 1]));
      if (to > from) data.fill(value, y * width + from, y * width + to);
    }
  }
  stroke.touch(0, top, width, bottom);
}

// The connected area of one value around a point.
export function paintFill(stroke, point, value) {
  const { data, width, height } = stroke.layer, start = Math.floor(point.y) * width + Math.floor(point.x), old = data[start];
  if (old === value) return;
  const open = [start];
  data[start] = value;
  while (open.length) {
    const at = open.pop(), x = at % width;
    for (const next of [x > 0 ? at - 1 : -1, x < width - 1 ? at + 1 : -1, at - width, at + width]) {
      if (next >= 0 && next < width * height && data[next] === old) {
        data[next] = value;
        open.push(next);
      }
    }
  }
  stroke.touch(0, 0, width, height);
}

// A mask (0 or 1 per pixel) with its place.
export function paintMask(stroke, mask, value) {
  const { data, width } = stroke.layer;
  for (let y = 0, i = 0; y < mask.height; y++) {
    let at = (mask.top + y) * width + mask.left;
    for (let x = 0; x < mask.width; x++, at++, i++) if (mask.data[i]) data[at] = value;
  }
  stroke.touch(mask.left, mask.top, mask.left + mask.width, mask.top + mask.height);
}
